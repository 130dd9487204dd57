"""How requests of the two versions are told apart."""

FIRST_OCTET_OF_V3 = b"\x0a"
"""A request of version 3 begins with its header, which is field 1; what begins so may be one of version 2 as well."""

"""The first byte of a request, which distinguishes the protocol versions."""

FIRST_OCTET_OF_V3 = b"\x0a"
"""Tag of the header, which is field 1 of a request of version 3. A request of version 2 may begin with it as well."""

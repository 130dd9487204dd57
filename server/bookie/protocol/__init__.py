"""Wire protocol of bookies, versions 2 and 3."""

"""Bookies' directories, the copies of entries in them, and the ledgers they make up."""

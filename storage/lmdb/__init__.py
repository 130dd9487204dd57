"""LMDB: the environment, and the pages of its data file."""

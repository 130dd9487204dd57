"""Dumps of the metadata store."""

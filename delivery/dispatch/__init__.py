"""Dispatch: the sources of messages, and their order."""

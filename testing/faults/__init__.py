"""Fault injection and failpoints."""

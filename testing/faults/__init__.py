"""Faults that tests inject, and failpoints."""

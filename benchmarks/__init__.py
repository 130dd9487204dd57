"""Every figure that is claimed for bookstand, measured beside its baseline: `python -m benchmarks [ROW...]`."""

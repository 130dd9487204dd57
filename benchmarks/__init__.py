"""Benchmarks for every published figure, compared with baselines: `python -m benchmarks [ROW...]`."""

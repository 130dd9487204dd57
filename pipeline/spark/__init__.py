"""Spark: sessions, the data source, and the runner of jobs."""

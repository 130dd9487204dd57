"""Execution of jobs: units of work, workers, and publication of results."""

"""The report, from what is counted to what is seen."""

"""Reading and rewriting many stores and many bookies' disks on Spark; what does the work runs without Spark as well."""

"""``python -m bookstand.demo``: deliver a million messages across a simulated power cut.

A child process publishes and consumes, and is killed with SIGKILL. A second one continues from the stored state. The
parent process tracks every message. The exit code is 1 if a message is lost, delivered early or redelivered
unexpectedly, or if the store is damaged.
"""

"""``python -m bookstand.demo``: a million messages, delayed and not, with the power cut in the middle.

One process publishes and consumes, and is killed with SIGKILL; another one goes on from what the store kept. The
process that starts and kills them keeps books of every message, and compares.
Exit code 1 if anything was lost, came early or came again without a reason, or if the store does not verify.
"""

"""Power cuts: recording of writes, and the states of the disk after a cut."""

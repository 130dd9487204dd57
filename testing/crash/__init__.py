"""Power cuts: recording of file operations, and the states of the disk after a cut."""

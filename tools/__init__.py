"""The command line: what is in stores and on the disks of bookies, and what is wrong with it."""

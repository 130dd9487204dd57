"""Views of stores and disks, which the commands print."""

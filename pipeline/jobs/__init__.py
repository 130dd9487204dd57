"""Jobs over many stores and disks."""

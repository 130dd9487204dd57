"""Import of bookies' disks into a store."""

"""Export of a store to bookies' disks."""

"""Command line that shows and verifies the contents of stores and of bookies' disks."""

"""Views of stores and disks that commands show."""

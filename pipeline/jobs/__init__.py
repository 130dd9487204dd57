"""What can be done to many stores and disks at once, each job in a module of its own."""

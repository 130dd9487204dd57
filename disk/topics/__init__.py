"""Pulsar's topics, messages, cursors and delayed messages on bookies' disks."""

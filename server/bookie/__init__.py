"""Bookies over a store: BookKeeper's bookie protocol, versions 2 and 3 on one port."""

"""BookKeeper's bookie protocol, versions 2 and 3 on one port, over a store."""

"""Report on a store or on bookies' disks: one self-contained HTML page."""

"""A report: one page of HTML that stands by itself, about a store or about bookies' disks."""

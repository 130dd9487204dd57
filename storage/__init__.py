"""The bookie: stored entries, group commit, fences and versioned metadata on LMDB."""

"""Group commit: operations of many callers in one LMDB transaction, and the futures that report its outcome."""

"""The wire: the bookie's and ZooKeeper's protocols over a store, for clients in other languages."""

"""Wire protocol of ZooKeeper."""

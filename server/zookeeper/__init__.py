"""ZooKeeper's protocol over the nodes and ledgers of a store, as used by the clients of BookKeeper and Pulsar."""

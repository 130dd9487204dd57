"""ZooKeeper's protocol over the nodes and ledgers of a store, as far as BookKeeper's and Pulsar's clients use it."""

"""Layout of a cluster in the metadata store: paths and bookie cookies."""

"""Format of Pulsar messages: framing, metadata, batches and compression."""

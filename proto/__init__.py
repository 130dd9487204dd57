"""Wire formats: hand-written protobuf codecs, the schemas, and the modules generated from them."""

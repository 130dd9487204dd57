"""Wire formats: protobuf's encodings read and written by hand, and the schemas with the modules generated from them."""

"""Content that `make docs` generates from the code and adds to the pages of docs/."""

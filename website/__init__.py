"""What `make docs` adds to the pages of docs/: everything that the code knows better than a page could."""

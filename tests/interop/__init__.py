"""Questions about bytes of ours put to the original's own Java classes; ``python -m tests.interop`` asks them all."""

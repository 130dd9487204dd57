"""``python -m bookstand.storage.process.probe PATH``: read the whole store and print the error, if any.

``check="subprocess"`` runs it as a child process: a damaged file that crashes the reader crashes the child only.
"""

from __future__ import annotations

import sys

from bookstand.errors import BookstandError
from bookstand.storage.storage import open_storage


def main(path: str) -> int:
    try:
        open_storage(path, create=False, read_only=True, check="full").close()
    except BookstandError as error:
        # The path may have bytes that are not UTF-8.
        sys.stdout.buffer.write(f"{type(error).__name__}: {error}\n".encode(errors="surrogateescape"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

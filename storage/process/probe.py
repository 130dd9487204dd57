"""``python -m bookstand.storage.process.probe PATH``: read all of a store, and print the error it gives, if any.

Run as a child process by ``check="subprocess"``: what would kill a process that opens a damaged file kills this one.
"""

from __future__ import annotations

import sys

from bookstand.errors import BookstandError
from bookstand.storage.storage import open_storage


def main(path: str) -> int:
    try:
        open_storage(path, create=False, read_only=True, check="full").close()
    except BookstandError as error:
        # With the path as it is, whatever its bytes.
        sys.stdout.buffer.write(f"{type(error).__name__}: {error}\n".encode(errors="surrogateescape"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

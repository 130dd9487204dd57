"""A bookie to be measured: ``python -m benchmarks.bookie_adds_server PATH``.

Says its port, and then for every line that it is sent the CPU seconds that the process has taken so far.
"""

from __future__ import annotations

import sys
import time

import bookstand
from bookstand.server.bookie.server import BookieServer
from bookstand.server.running import Running


def main(path: str) -> None:
    with bookstand.open(path) as store:
        server = BookieServer(store.storage, ports=[0])
        with Running(server):
            print(server.addresses[0][1], flush=True)
            for _ in sys.stdin:
                print(time.process_time(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""Bookies in a process of their own, to be killed: ``python -m tests.server.bookie.victim PATH BOOKIES [RULE...]``."""

from __future__ import annotations

import asyncio
import sys

import bookstand
from bookstand.server.bookie.server import BookieServer
from bookstand.server.fault_rules import ServerFaults


async def serve(path: str, bookies: int, faults: list[str]) -> None:
    with bookstand.open(path) as store:
        rules = ServerFaults(store.storage)
        for line in faults:
            rules.add(line)
        server = BookieServer(store.storage, ports=[0] * bookies)
        await server.start()
        print(*(port for _, port in server.addresses), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))

"""A disk that is really full: the bookie is read-only, and takes adds again once there is space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.server import BookieServer
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire


def test_adds_are_refused_and_reads_go_on(
    small_disk: Path, open_store: Callable[..., Any], serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    ballast = small_disk / "ballast"
    store = open_store(path=small_disk / "store")
    wire = connect(serve(store=store))
    assert wire.v2(kit.v2_add(kit.stored(1, 0))).code == 0
    ballast.write_bytes(bytes(1 << 20))
    number, code = 1, 0
    while code == 0:
        code = wire.v2(kit.v2_add(kit.stored(1, number, bytes(100_000)))).code
        number += 1
    assert code == 105
    assert wire.v3(kit.v3_add(kit.stored(2, 0, bytes(100_000)))).status == messages.EREADONLY
    assert wire.v2(kit.v2_read(1, 0)).body == kit.stored(1, 0)
    ballast.unlink()
    assert wire.v2(kit.v2_add(kit.stored(1, number, bytes(100_000)))).code == 0

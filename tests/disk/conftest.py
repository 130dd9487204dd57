"""What the tests of the disks' readers share."""

from __future__ import annotations

from tests.disk.recordings import unpacked

__all__ = ["unpacked"]

"""What the tests of the disks' readers share."""

from __future__ import annotations

from tests.disk.recordings import unpacked
from tests.storage.conftest import memory_path, shim_library

__all__ = ["memory_path", "shim_library", "unpacked"]

"""What reports are about is what the other tests of tools look at."""

from __future__ import annotations

from tests.tools.conftest import bench, folder, here, own, unpacked

__all__ = ["bench", "folder", "here", "own", "unpacked"]

"""What the pages on tools are about is what the tests of tools look at."""

from __future__ import annotations

from tests.tools.conftest import bench, unpacked

__all__ = ["bench", "unpacked"]

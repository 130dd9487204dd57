"""Output that is kept as plain text in ``tests/tools/snapshots``, to be looked at and compared with.

``BOOKSTAND_SNAPSHOTS=write`` writes them anew; what has changed then shows in the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"


def compare(name: str, columns: int | None, text: str) -> None:
    path = FOLDER / f"{name}-{columns or 'piped'}.txt"
    if os.environ.get("BOOKSTAND_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    if columns is not None and not name.startswith("cat-"):
        assert not [line for line in text.splitlines() if len(line) > columns and "/" not in line]

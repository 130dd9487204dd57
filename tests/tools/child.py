"""The command line as a process of its own: for pipes, terminals, signals and other processes."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kit import PATIENCE

COMMAND = [sys.executable, "-W", "error", "-m", "bookstand.tools.main"]
_CONTROL = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[=>])")


def environment(**variables: str) -> dict[str, str]:
    """Without what the tests were started with that changes output."""
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    return {**kept, "TERM": "xterm", **variables}


def start(*arguments: object, folder: Path | None = None, columns: int | None = None, **options: Any) -> Any:
    variables = {} if columns is None else {"COLUMNS": str(columns)}
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], cwd=folder, env=environment(**variables), text=True, **options
    )


def finished(child: Any) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=PATIENCE)
    return child.returncode, out or "", err or ""


class Terminal:
    """A terminal of so many columns, for some of a child's streams."""

    def __init__(self, columns: int = 80) -> None:
        self._ours, self.end = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._text = b""

    def read(self) -> str:
        """All that is written until nobody has it open; with its control sequences."""
        os.close(self.end)
        while True:
            try:
                part = os.read(self._ours, 1 << 16)
            except OSError:
                part = b""
            if not part:
                os.close(self._ours)
                return self._text.decode(errors="replace").replace("\r\n", "\n")
            self._text += part


def without_control(text: str) -> str:
    return _CONTROL.sub("", text)

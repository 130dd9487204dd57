"""The file ``VERSION`` of each of a bookie's folders: its cookie."""

from __future__ import annotations

from pathlib import Path

from bookstand.disk.damage import Damage, Report
from bookstand.errors import MalformedError
from bookstand.ledger.cluster.cookie import Cookie, parse

FILE = "VERSION"

# A cookie names some folders. A larger file is none, and is not read.
_MOST_BYTES = 1 << 20


def read_cookie(path: Path, report: Report) -> Cookie | None:
    """The cookie in the file ``path``; None if there is none that can be read, which is reported."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise MalformedError(f"it has more than {_MOST_BYTES} bytes")
        return parse(data)
    except OSError as error:
        report(Damage(str(path), 0, f"the cookie cannot be read: {error.strerror or error}"))
    except MalformedError as error:
        report(Damage(str(path), 0, f"the cookie is damaged: {error}"))
    return None

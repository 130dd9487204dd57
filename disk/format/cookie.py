"""Cookie of a journal or ledger folder: the file ``VERSION``."""

from __future__ import annotations

from pathlib import Path

from bookstand.disk.damage import Damage, Report
from bookstand.errors import MalformedError
from bookstand.ledger.cluster.cookie import Cookie, parse

FILE = "VERSION"

# A cookie lists a few folders. A larger file is not a cookie and is not read in full.
_MOST_BYTES = 1 << 20


def read_cookie(path: Path, report: Report) -> Cookie | None:
    """Read the cookie at ``path``; return None if it is unreadable, which is reported."""
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

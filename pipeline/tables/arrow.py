"""Import of Arrow. The error for a missing installation names the extra that installs it."""

from __future__ import annotations

from bookstand.errors import MissingExtraError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise MissingExtraError(f"Arrow is needed: pip install 'bookstand[spark]' ({error})") from error

__all__ = ["pa", "pc"]

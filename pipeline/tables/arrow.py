"""Arrow, or the name of the extra that brings it."""

from __future__ import annotations

from bookstand.errors import MissingExtraError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise MissingExtraError(f"Arrow is needed: pip install 'bookstand[spark]' ({error})") from error

__all__ = ["pa", "pc"]

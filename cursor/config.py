"""How a cursor works: its limits, when it writes, and in which form."""

from __future__ import annotations

from dataclasses import dataclass, fields
from os import PathLike
from typing import Self

from bookstand.errors import IncorrectParameterError
from bookstand.ledger.broker_conf import CURSOR, BrokerConf

SMALLEST_METADATA_LIMIT = 1 << 10


@dataclass(frozen=True, kw_only=True)
class CursorConfig:
    """Names as PIP-81 and PIP-299 have them where they name something."""

    max_individual_ack_cache_bytes: int = 3 << 20
    """What pages may take in memory; one is always kept, however large."""

    enable_lru_cache_max_unacked_ranges: bool = True
    """Pages and markers. Without: everything in memory, and full snapshots in Pulsar's old form, with its limits."""

    max_per_cursor_metadata_size_in_bytes: int = 5 << 20
    """At this size of the state dispatching is to pause. Less than 1: never; else at least 1 KiB."""

    flush_interval: float = 1.0
    """Seconds after which what was accepted is written, if nobody asked for it before."""

    throttle_mark_delete: float | None = None
    """Pulsar's way of writing: at once, but at most so often a second; 0: each time. None: after ``flush_interval``."""

    flush_commit_bytes: int = 8 << 20
    """A flush larger than this is written in several commits, its marker in the last."""

    max_entries_per_cursor_ledger: int = 50_000
    max_cursor_ledger_age: float = 4 * 3600.0
    """A cursor ledger that has so many entries, or is so many seconds old, is followed by a new one."""

    retained_cursor_ledgers: int = 0
    """How many former cursor ledgers are kept, for ``history()`` to reach back into."""

    batch_index_acks: bool = True
    """Without: acknowledging part of a batch does nothing."""

    persist_as_long_array: bool = True
    max_unacked_ranges_to_persist: int = 10_000
    max_unacked_ranges_in_metadata_store: int = 1_000
    max_batch_deleted_index_to_persist: int = 10_000
    """The old form's: of more ranges, or entries acknowledged in part, only the lowest are written."""

    compression: str | None = None
    compression_threshold: int = 16 << 10
    """The codec of the cursor's record in the metadata store, and from how many bytes on it is compressed. Pulsar 4.2.4
    cannot read a string, and so no property, in a record that is compressed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 0):
                if field.name == "max_per_cursor_metadata_size_in_bytes" and type(value) is int:
                    continue
                raise IncorrectParameterError(f"{field.name} is a number from 0 up, not {value!r}")
            if field.type == "bool" and type(value) is not bool:
                raise IncorrectParameterError(f"{field.name} is True or False, not {value!r}")
            if field.type.startswith("float") and not (
                (value is None and "None" in field.type)
                or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0)
            ):
                raise IncorrectParameterError(f"{field.name} is a number of seconds or a rate, not {value!r}")
        limit = self.max_per_cursor_metadata_size_in_bytes
        if 1 <= limit < SMALLEST_METADATA_LIMIT:
            raise IncorrectParameterError(
                f"max_per_cursor_metadata_size_in_bytes is at least {SMALLEST_METADATA_LIMIT}, or less than 1 for no "
                f"limit, not {limit}"
            )
        if self.max_entries_per_cursor_ledger < 1:
            raise IncorrectParameterError("max_entries_per_cursor_ledger is at least 1")

    @classmethod
    def from_broker_conf(cls, path: str | PathLike[str]) -> Self:
        """Read the settings of cursors from Pulsar's ``broker.conf``. Those that the file does not set keep their
        defaults here; :attr:`BrokerConf.unknown` lists those without a counterpart."""
        return BrokerConf.read(path).build_config(cls, CURSOR)

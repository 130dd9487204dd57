"""Settings of a cursor: limits, the timing of writes, and the form of the stored state."""

from __future__ import annotations

from dataclasses import dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple, Self

from bookstand.errors import IllegalOperationError, IncorrectParameterError
from bookstand.managed_ledger.broker_conf import CURSOR, BrokerConf
from bookstand.managed_ledger.message.compression import NUMBERS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SMALLEST_METADATA_LIMIT = 1 << 10


@dataclass(frozen=True, kw_only=True)
class CursorConfig:
    """Settings of a cursor. Settings of PIP-81 and PIP-299 have their names from there."""

    max_individual_ack_cache_bytes: int = 3 << 20
    """Maximum size of the pages in memory, in bytes. One page stays in memory even if it is larger."""

    enable_lru_cache_max_unacked_ranges: bool = True
    """Store the state as pages and markers. If False, the whole state is in memory and each write is a full snapshot in
    Pulsar's snapshot form, with the limits of that form."""

    max_per_cursor_metadata_size_in_bytes: int = 5 << 20
    """Size of the stored state at which dispatch pauses, in bytes. During a pause only entries up to the highest
    acknowledged position are dispatched. Less than 1 means no limit and no pause, also in the snapshot form if its
    limits exclude a part of the state; other values must be 1 KiB or more."""

    flush_interval: float = 1.0
    """Number of seconds after which a change is written, unless a flush writes it earlier."""

    throttle_mark_delete: float | None = None
    """Maximum number of immediate writes per second, as in Pulsar; further changes are written after
    ``flush_interval``. 0 writes each change immediately, None writes every change after ``flush_interval``."""

    flush_commit_bytes: int = 8 << 20
    """Maximum number of bytes in one commit of a flush. A larger flush takes several commits; the last one contains the
    marker."""

    max_entries_per_cursor_ledger: int = 50_000
    max_cursor_ledger_age: float = 4 * 3600.0
    """Limits of a cursor ledger, in entries and in seconds. A new ledger follows when one of them is reached."""

    retained_cursor_ledgers: int = 0
    """Number of former cursor ledgers that are retained for ``history()``."""

    batch_index_acks: bool = True
    """Track acknowledgments of single messages of a batch. If False, acknowledging a part of a batch has no effect."""

    persist_as_long_array: bool = True
    max_unacked_ranges_to_persist: int = 10_000
    max_unacked_ranges_in_metadata_store: int = 1_000
    max_batch_deleted_index_to_persist: int = 10_000
    """Encoding and limits of the snapshot form: store ranges as arrays of longs, and the maximum numbers of ranges in a
    snapshot, of ranges in the record, and of partially acknowledged batches. Beyond a limit only the lowest are
    written."""

    allow_loss: bool = False
    """Open a cursor in the snapshot form even if its stored state exceeds these limits. The excess is not written, and
    those messages are redelivered after a restart. If False, opening it raises :class:`IllegalOperationError`."""

    compression: str | None = None
    compression_threshold: int = 16 << 10
    """Codec of the cursor's record in the metadata store, and the size above which the record is compressed, in bytes.
    Pulsar 4.2.4 cannot read strings, and so no cursor properties, in a compressed record."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 0):
                if field.name == "max_per_cursor_metadata_size_in_bytes" and type(value) is int:
                    continue
                raise IncorrectParameterError(f"{field.name} must be a non-negative integer, not {value!r}")
            if field.type == "bool" and type(value) is not bool:
                raise IncorrectParameterError(f"{field.name} must be True or False, not {value!r}")
            if field.type.startswith("float") and not (
                (value is None and "None" in field.type)
                or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0)
            ):
                raise IncorrectParameterError(f"{field.name} must be a non-negative number, not {value!r}")
        limit = self.max_per_cursor_metadata_size_in_bytes
        if 1 <= limit < SMALLEST_METADATA_LIMIT:
            raise IncorrectParameterError(
                f"max_per_cursor_metadata_size_in_bytes must be at least {SMALLEST_METADATA_LIMIT}, or less than 1 for "
                f"no limit, not {limit}"
            )
        if self.compression is not None and self.compression not in NUMBERS:
            raise IncorrectParameterError(
                f"compression must be one of {', '.join(NUMBERS)} or None, not {self.compression!r}"
            )
        if self.max_entries_per_cursor_ledger < 1:
            raise IncorrectParameterError("max_entries_per_cursor_ledger must be a positive integer, not 0")

    @classmethod
    def from_broker_conf(cls, path: str | PathLike[str]) -> Self:
        """Read the cursor settings from Pulsar's ``broker.conf``. Settings that the file does not set keep their
        defaults; :attr:`BrokerConf.unknown` lists the ones without a counterpart."""
        return BrokerConf.read(path).build_config(cls, CURSOR)


class WhileOpen(NamedTuple):
    """Settings of a configuration that can, or cannot, be changed while its object is open."""

    changeable: frozenset[str]
    fixed: frozenset[str]
    remedy: str
    """Advice on changing a fixed setting."""

    def check(self, what: str, current: DataclassInstance, requested: DataclassInstance) -> None:
        """Raise :class:`IllegalOperationError` if a setting that is fixed while ``what`` is open differs."""
        for field in fields(requested):
            if field.name in self.changeable:
                continue
            old, new = getattr(current, field.name), getattr(requested, field.name)
            if old != new:
                raise IllegalOperationError(
                    f"{what} is open with {field.name}={old!r}, which cannot be changed to {new!r} while it is open; "
                    f"{self.remedy}"
                )


CURSOR_WHILE_OPEN = WhileOpen(
    changeable=frozenset(
        {
            "batch_index_acks",
            "compression",
            "compression_threshold",
            "flush_commit_bytes",
            "flush_interval",
            "max_batch_deleted_index_to_persist",
            "max_cursor_ledger_age",
            "max_entries_per_cursor_ledger",
            "max_individual_ack_cache_bytes",
            "max_per_cursor_metadata_size_in_bytes",
            "max_unacked_ranges_in_metadata_store",
            "max_unacked_ranges_to_persist",
            "persist_as_long_array",
            "retained_cursor_ledgers",
            "throttle_mark_delete",
        }
    ),
    fixed=frozenset({"allow_loss", "enable_lru_cache_max_unacked_ranges"}),
    remedy="close the cursor (or its subscription) first",
)
"""Changeable and fixed settings of :class:`CursorConfig`."""

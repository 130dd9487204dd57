"""Settings in Pulsar's ``broker.conf``, and their counterparts in the configs of topics and cursors.

The file is interpreted as by Pulsar's broker. A key with an empty value is ignored, the last of several lines with the
same key applies, and numbers below 1 have Pulsar's meaning: unlimited, disabled, or full after the first entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from os import PathLike, fspath
from typing import Any, NamedTuple, TypeVar

from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger.message.compression import NUMBERS
from bookstand.storage.logger import logger

_Config = TypeVar("_Config")
_Value = TypeVar("_Value")

TOPIC, CURSOR = "topic", "cursor"


class Line(NamedTuple):
    """A setting in the file."""

    number: int
    key: str
    value: str


class Setting(NamedTuple):
    """Counterpart of a key: a field of a topic's or a cursor's config."""

    config: str
    field: str
    convert: Callable[[str], object]


# -- values ------------------------------------------------------------------------------------------------------------


def _integer(bits: int, minimum: int | None = None, floor: int | None = None, factor: int = 1) -> Callable[[str], int]:
    """Return a converter for Java's int or long that rejects numbers below ``minimum`` and clamps to ``floor``."""
    end = 1 << (bits - 1)
    rule = f"a {bits}-bit integer" + ("" if minimum is None else f" of {minimum} or more")

    def convert(text: str) -> int:
        number = int(text) if re.fullmatch("[+-]?[0-9]{1,20}", text) else end
        if not -end <= number < end or (minimum is not None and number < minimum):
            raise ValueError(rule)
        number *= factor
        return number if floor is None else max(floor, number)

    return convert


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _decimal(text: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?", text):
        raise ValueError("a decimal number")
    return float(text.rstrip("fFdD"))


_FACTORIES = {
    f"{package}{name}DelayedDeliveryTrackerFactory": tracker
    for package in ("", "org.apache.pulsar.broker.delayed.")
    for name, tracker in (("InMemory", "in_memory"), ("Bucket", "bucket"))
}


def _tracker(text: str) -> str:
    if text not in _FACTORIES:
        raise ValueError(f"one of {', '.join(_FACTORIES)} (trackers are not pluggable)")
    return _FACTORIES[text]


def _codec(text: str) -> str | None:
    if text not in NUMBERS:
        raise ValueError(f"one of {', '.join(NUMBERS)}")
    return None if text == "NONE" else text


def _switch(text: str) -> int | None:
    """Convert a switch to a limit: 0 (unlimited) if it is off, None (the default) if it is on."""
    return None if _flag(text) else 0


_INT, _LONG = _integer(32), _integer(64)

_LIMIT = "max_per_cursor_metadata_size_in_bytes"
_LIMIT_NAMES = ("maxPerCursorMetadataSizeInBytes", "maxUnPersistAckRecordsBytesPerSubscription")
_PAUSE = "dispatcherPauseOnAckStatePersistentEnabled"
_ZOOKEEPER = "managedLedgerMaxUnackedRangesToPersistInZooKeeper"
_OLDEST, _YOUNGEST = "managedLedgerMaxLedgerRolloverTimeMinutes", "managedLedgerMinLedgerRolloverTimeMinutes"
_YOUNGEST_DEFAULT = 10

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": Setting(TOPIC, "max_entries_per_ledger", _integer(32, floor=1)),
    "managedLedgerMaxSizePerLedgerMbytes": Setting(
        TOPIC, "max_bytes_per_ledger", _integer(32, floor=1, factor=1 << 20)
    ),
    _OLDEST: Setting(TOPIC, "max_ledger_age", _integer(32, factor=60)),
    "autoSkipNonRecoverableData": Setting(TOPIC, "auto_skip_non_recoverable_data", _flag),
    "delayedDeliveryTrackerFactoryClassName": Setting(TOPIC, "delayed_delivery_tracker", _tracker),
    "delayedDeliveryTickTimeMillis": Setting(TOPIC, "delayed_delivery_tick_time_millis", _LONG),
    "isDelayedDeliveryDeliverAtTimeStrict": Setting(TOPIC, "is_delayed_delivery_deliver_at_time_strict", _flag),
    "delayedDeliveryFixedDelayDetectionLookahead": Setting(
        TOPIC, "delayed_delivery_fixed_delay_detection_lookahead", _LONG
    ),
    "delayedDeliveryMinIndexCountPerBucket": Setting(TOPIC, "delayed_delivery_min_index_count_per_bucket", _LONG),
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": Setting(
        TOPIC, "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds", _INT
    ),
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": Setting(
        TOPIC, "delayed_delivery_max_indexes_per_bucket_snapshot_segment", _INT
    ),
    "delayedDeliveryMaxNumBuckets": Setting(TOPIC, "delayed_delivery_max_num_buckets", _INT),
    "delayedDeliverySharedIndexEnabled": Setting(TOPIC, "delayed_delivery_shared_index_enabled", _flag),
    "maxIndividualAckCacheBytesPerCursor": Setting(CURSOR, "max_individual_ack_cache_bytes", _LONG),
    "enableLruCacheMaxUnackedRanges": Setting(CURSOR, "enable_lru_cache_max_unacked_ranges", _flag),
    _PAUSE: Setting(CURSOR, _LIMIT, _switch),
    **{name: Setting(CURSOR, _LIMIT, _LONG) for name in _LIMIT_NAMES},
    "managedLedgerCursorPositionFlushSeconds": Setting(CURSOR, "flush_interval", _integer(32, minimum=1)),
    "managedLedgerDefaultMarkDeleteRateLimit": Setting(CURSOR, "throttle_mark_delete", _decimal),
    "managedLedgerCursorMaxEntriesPerLedger": Setting(CURSOR, "max_entries_per_cursor_ledger", _integer(32, floor=1)),
    "managedLedgerCursorRolloverTimeInSeconds": Setting(CURSOR, "max_cursor_ledger_age", _integer(32, floor=0)),
    "acknowledgmentAtBatchIndexLevelEnabled": Setting(CURSOR, "batch_index_acks", _flag),
    "managedLedgerPersistIndividualAckAsLongArray": Setting(CURSOR, "persist_as_long_array", _flag),
    "managedLedgerMaxUnackedRangesToPersist": Setting(CURSOR, "max_unacked_ranges_to_persist", _integer(32, floor=0)),
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": Setting(
        CURSOR, "max_unacked_ranges_in_metadata_store", _integer(32, floor=0)
    ),
    _ZOOKEEPER: Setting(CURSOR, "max_unacked_ranges_in_metadata_store", _INT),
    "managedLedgerMaxBatchDeletedIndexToPersist": Setting(
        CURSOR, "max_batch_deleted_index_to_persist", _integer(32, floor=0)
    ),
    "managedCursorInfoCompressionType": Setting(CURSOR, "compression", _codec),
    "managedCursorInfoCompressionThresholdInBytes": Setting(CURSOR, "compression_threshold", _integer(64, floor=0)),
}
"""Keys in the order in which they are applied. If two keys set the same field, the later one applies."""


# -- the file ----------------------------------------------------------------------------------------------------------


class BrokerConf:
    """Settings of a ``broker.conf``. Use :meth:`read`."""

    path: str
    """Path of the file."""

    lines: dict[str, Line]
    """Settings by key, including empty ones."""

    def __init__(self, path: str, lines: dict[str, Line]) -> None:
        self.path = path
        self.lines = lines

    @classmethod
    def read(cls, path: str | PathLike[str]) -> BrokerConf:
        """Read a file in the format of Java's properties, in UTF-8 or ISO-8859-1."""
        with open(path, "rb") as file:
            stored = file.read()
        try:
            text = stored.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = stored.decode("iso-8859-1")
        try:
            lines = {line.key: line._replace(value=line.value.strip(_TRIMMED)) for line in parse_properties(text)}
        except IncorrectParameterError as error:
            raise IncorrectParameterError(f"{fspath(path)}, {error}") from None
        return cls(fspath(path), lines)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys that have no counterpart in :class:`TopicConfig` or :class:`CursorConfig`, in the order of the file."""
        return tuple(key for key in self.lines if key not in SETTINGS)

    def build_config(self, kind: Callable[..., _Config], config: str) -> _Config:
        """Build a config from the settings for ``config``, which is ``TOPIC`` or ``CURSOR``."""
        if self.unknown:
            logger().info(
                "%s: %d settings have no counterpart and are not applied: %s",
                self.path,
                len(self.unknown),
                ", ".join(self.unknown),
            )
        values: dict[str, Any] = {}
        for key, setting in SETTINGS.items():
            line = self._line(key)
            if line is None or setting.config != config:
                continue
            self._apply(values, line, setting.field, self._converted(line, setting.convert))
            try:
                kind(**values)
            except IncorrectParameterError as error:
                raise self._rejected(line, f"is {line.value!r}: {error}") from None
        return kind(**values)

    def _line(self, key: str) -> Line | None:
        line = self.lines.get(key)
        return line if line is not None and line.value else None

    def _apply(self, values: dict[str, Any], line: Line, field: str, value: Any) -> None:
        """Set a field. Some rules of Pulsar's depend on other keys."""
        if line.key == _OLDEST:
            youngest = self._line(_YOUNGEST)
            minimum = _YOUNGEST_DEFAULT if youngest is None else self._converted(youngest, _INT)
            if value < minimum * 60:
                raise self._rejected(line, f"must be at least {_YOUNGEST}, {minimum}, not {line.value!r}")
            if value <= 0:
                # Pulsar then closes each ledger after its first entry.
                values["max_entries_per_ledger"] = 1
                return
        if line.key == _PAUSE and value is None:
            return
        if line.key == _ZOOKEEPER and value <= 0:
            return
        if line.key == _LIMIT_NAMES[1] and (first := self._line(_LIMIT_NAMES[0])) and value != values[field]:
            raise self._rejected(line, f"must be the same as {first.key} in line {first.number}, not {line.value!r}")
        values[field] = value

    def _converted(self, line: Line, convert: Callable[[str], _Value]) -> _Value:
        try:
            return convert(line.value)
        except ValueError as error:
            raise self._rejected(line, f"must be {error}, not {line.value!r}") from None

    def _rejected(self, line: Line, why: str) -> IncorrectParameterError:
        return IncorrectParameterError(f"{self.path}, line {line.number}: {line.key} {why}")


_BLANKS = " \t\f"
_TRIMMED = "".join(map(chr, range(ord(" ") + 1)))
_PAIR = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> Iterator[Line]:
    """Parse text in the format of Java's properties. Each pair has the number of its first line."""
    natural = enumerate(re.split("\r\n|\r|\n", text), 1)
    for number, line in natural:
        line = line.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]
            if not line:
                # Java parses the next line separately; it may be a comment.
                break
            line += next(natural, (0, ""))[1].lstrip(_BLANKS)
        if not line:
            continue
        pair = _PAIR.fullmatch(line)
        assert pair is not None
        yield Line(number, _unescaped(pair[1], number), _unescaped(pair[2], number))


def _unescaped(text: str, number: int) -> str:
    if "\\" not in text:
        return text

    def unescape(match: re.Match[str]) -> str:
        code = match[1]
        if code == "u":
            raise IncorrectParameterError(f"line {number}: \\u must be followed by four hexadecimal digits: {text!r}")
        return chr(int(code[1:], 16)) if len(code) > 1 else _NAMED.get(code, code)

    # Two \u escapes may form a surrogate pair.
    return _ESCAPE.sub(unescape, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

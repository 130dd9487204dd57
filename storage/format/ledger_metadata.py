"""Ledger metadata, and its encodings in BookKeeper's formats.

Three formats are written and read, each beginning with ``BookieMetadataFormatVersion\\t<n>\\n``. Format 1 is lines of
text (:mod:`bookstand.storage.format.ledger_metadata_text`), without password, digest, creation time and custom
metadata. Format 2 is protobuf's text format, format 3 a length-prefixed protobuf message
(:mod:`bookstand.storage.format.ledger_metadata_binary`). None of them has a checksum: as in BookKeeper, damage that
leaves a well-formed message goes unnoticed.
"""

from __future__ import annotations

from types import MappingProxyType

from bookstand.errors import IncorrectParameterError, MetadataSerializationError
from bookstand.proto.wire_format import WireError
from bookstand.storage.format.digest import digest_name
from bookstand.storage.format.ledger_metadata_binary import arguments_of, delimited, read_delimited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn

    Ensembles = tuple[tuple[int, tuple[str, ...]], ...]

OPEN = "OPEN"
IN_RECOVERY = "IN_RECOVERY"
CLOSED = "CLOSED"
STATES = (OPEN, IN_RECOVERY, CLOSED)

FORMATS = (1, 2, 3)
CURRENT_FORMAT = 3
NO_ENTRY = -1

# Key in the custom metadata of a ledger whose metadata was lost and has been reconstructed.
MADE_UP = "bookstand/made-up"

_HEADER = b"BookieMetadataFormatVersion\t"
_VERSION_DIGITS = 10

_IN_BOOKIE_IDS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:;<=>?@[\\]^_.-")
_INT32 = 1 << 31
_INT64 = 1 << 63


class LedgerMetadata:
    """Immutable metadata of a ledger; :meth:`replace` makes changed copies.

    ``last_entry_id`` and ``length`` are required for a ``CLOSED`` ledger, and are -1 and 0 in any other state. Password
    and digest must be given both or neither (``has_password``). ``ensembles`` lists the first entry and the bookies of
    each ensemble. ``stores_ctime`` is True if the bytes include ``ctime`` (ms); otherwise only the metadata service
    has it. ``custom_metadata`` is in the order in which BookKeeper would write it.

    ``version`` is the number of changes since creation, for compare-and-set. It is not part of the bytes, and
    comparisons ignore it.
    """

    __slots__ = (
        "ack_quorum_size",
        "ctime",
        "ctoken",
        "custom_metadata",
        "digest_type",
        "ensemble_size",
        "ensembles",
        "format_version",
        "has_password",
        "last_entry_id",
        "ledger_id",
        "length",
        "password",
        "state",
        "stores_ctime",
        "version",
        "write_quorum_size",
    )

    ledger_id: int
    format_version: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    state: str
    last_entry_id: int
    length: int
    digest_type: str | None
    password: bytes
    has_password: bool
    ctime: int
    stores_ctime: bool
    ctoken: int
    custom_metadata: Mapping[str, bytes]
    ensembles: Ensembles
    version: int

    def __init__(
        self,
        ledger_id: int,
        *,
        ensemble_size: int,
        write_quorum_size: int,
        ack_quorum_size: int,
        ensembles: Iterable[tuple[int, Iterable[str]]],
        state: str = OPEN,
        last_entry_id: int | None = None,
        length: int | None = None,
        digest_type: str | None = None,
        password: bytes | None = None,
        ctime: int = -1,
        stores_ctime: bool = False,
        ctoken: int = 0,
        custom_metadata: Mapping[str, bytes] | None = None,
        format_version: int = CURRENT_FORMAT,
        version: int = 0,
    ) -> None:
        if not 0 <= ledger_id < _INT64:
            _refuse(f"the ledger id must be from 0 to 2^63-1, not {ledger_id}")
        if format_version not in FORMATS:
            _refuse(f"the metadata format must be 1, 2 or 3, not {format_version}")
        if not 0 <= ack_quorum_size <= write_quorum_size <= ensemble_size < _INT32:
            _refuse(
                "ensemble size, write quorum and ack quorum must not increase in this order, "
                f"but are {ensemble_size}, {write_quorum_size} and {ack_quorum_size}"
            )
        if state not in STATES:
            _refuse(f"the state must be OPEN, IN_RECOVERY or CLOSED, not {state!r}")
        if state == CLOSED:
            if length is None or last_entry_id is None:
                _refuse("a closed ledger must have a length and a last entry")
        elif (length or 0) != 0 or (NO_ENTRY if last_entry_id is None else last_entry_id) != NO_ENTRY:
            _refuse(f"a ledger that is {state} must have neither last entry nor length")
        if (password is None) != (digest_type is None):
            _refuse("password and digest type must be given both or neither")
        for what, number in (("last entry", last_entry_id), ("length", length), ("ctime", ctime), ("ctoken", ctoken)):
            if number is not None and not -_INT64 <= number < _INT64:
                _refuse(f"the {what} {number} does not fit in 64 bits")

        store = object.__setattr__
        store(self, "ledger_id", ledger_id)
        store(self, "format_version", format_version)
        store(self, "ensemble_size", ensemble_size)
        store(self, "write_quorum_size", write_quorum_size)
        store(self, "ack_quorum_size", ack_quorum_size)
        store(self, "state", state)
        store(self, "last_entry_id", last_entry_id if state == CLOSED else NO_ENTRY)
        store(self, "length", length if state == CLOSED else 0)
        store(self, "digest_type", None if digest_type is None else digest_name(digest_type))
        store(self, "password", b"" if password is None else bytes(password))
        store(self, "has_password", password is not None)
        store(self, "ctime", ctime)
        store(self, "stores_ctime", stores_ctime)
        store(self, "ctoken", ctoken)
        store(self, "custom_metadata", _checked_custom_metadata(custom_metadata or {}))
        store(self, "ensembles", _checked_ensembles(ensembles, ensemble_size))
        store(self, "version", version)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"ledger metadata is immutable; use replace({name}=...)")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("ledger metadata is immutable")

    def _arguments(self) -> dict[str, Any]:
        closed = self.state == CLOSED
        return {
            "ledger_id": self.ledger_id,
            "format_version": self.format_version,
            "ensemble_size": self.ensemble_size,
            "write_quorum_size": self.write_quorum_size,
            "ack_quorum_size": self.ack_quorum_size,
            "state": self.state,
            "last_entry_id": self.last_entry_id if closed else None,
            "length": self.length if closed else None,
            "digest_type": self.digest_type,
            "password": self.password if self.has_password else None,
            "ctime": self.ctime,
            "stores_ctime": self.stores_ctime,
            "ctoken": self.ctoken,
            "custom_metadata": dict(self.custom_metadata),
            "ensembles": self.ensembles,
            "version": self.version,
        }

    def replace(self, **changes: Any) -> LedgerMetadata:
        """Return a copy with some fields changed. Last entry and length of a closed ledger are retained unless they are
        changed too, so any other state needs ``last_entry_id=None, length=None``."""
        arguments = self._arguments()
        leaves_closed = self.state == CLOSED and changes.get("state", CLOSED) != CLOSED
        if leaves_closed and not {"last_entry_id", "length"} <= changes.keys():
            _refuse("a ledger that is not closed has neither last entry nor length: both must be set to None")
        unknown = changes.keys() - arguments.keys()
        if unknown:
            _refuse(f"ledger metadata has no field {sorted(unknown)[0]!r}")
        return LedgerMetadata(**(arguments | changes))

    def ensemble_at(self, entry_id: int) -> tuple[str, ...]:
        """Bookies that hold an entry, or would hold it if it existed."""
        for first_entry, bookies in reversed(self.ensembles):
            if first_entry <= entry_id:
                return bookies
        raise IncorrectParameterError(
            f"ledger {self.ledger_id} begins with entry {self.ensembles[0][0]}, not {entry_id}"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LedgerMetadata):
            return NotImplemented
        return self._arguments() | {"version": 0} == other._arguments() | {"version": 0}

    def __hash__(self) -> int:
        return hash((self.ledger_id, self.state, self.last_entry_id, self.length, self.ctoken, self.ensembles))

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], LedgerMetadata], tuple[dict[str, Any]]]:
        return _rebuild, (self._arguments(),)

    def to_safe_string(self) -> str:
        """BookKeeper's description of the metadata, without the password."""
        return self._described("OMITTED")

    def __str__(self) -> str:
        """Description that includes the password, in base64. ``repr`` omits it, to keep it out of logs."""
        return self._described(_base64(self.password))

    __repr__ = to_safe_string

    def _described(self, password: str) -> str:
        parts = [
            f"formatVersion={self.format_version}",
            f"ensembleSize={self.ensemble_size}",
            f"writeQuorumSize={self.write_quorum_size}",
            f"ackQuorumSize={self.ack_quorum_size}",
            f"state={self.state}",
        ]
        if self.state == CLOSED:
            parts += [f"length={self.length}", f"lastEntryId={self.last_entry_id}"]
        if self.digest_type is not None:
            name = "MAC" if self.digest_type == "hmac" else self.digest_type.upper()
            parts += [f"digestType={name}", f"password={password}"]
        ensembles = ", ".join(f"{first}=[{', '.join(bookies)}]" for first, bookies in self.ensembles)
        custom = ", ".join(f"{key}={_base64(value)}" for key, value in self.custom_metadata.items())
        parts += [f"ensembles={{{ensembles}}}", f"customMetadata={{{custom}}}"]
        return f"LedgerMetadata{{{', '.join(parts)}}}"


def _rebuild(arguments: dict[str, Any]) -> LedgerMetadata:
    return LedgerMetadata(**arguments)


def _refuse(message: str) -> NoReturn:
    raise IncorrectParameterError(message)


def _base64(data: bytes) -> str:
    from binascii import b2a_base64

    return "base64:" + b2a_base64(data, newline=False).decode("ascii")


def _checked_custom_metadata(given: Mapping[str, bytes]) -> Mapping[str, bytes]:
    checked: dict[str, bytes] = {}
    for key in given if len(given) < 2 else _hash_map_order(given):
        value = given[key]
        if not isinstance(key, str) or isinstance(value, str):
            _refuse(f"custom metadata must map str to bytes, not {type(key).__name__} to {type(value).__name__}")
        try:
            key.encode()
            checked[key] = bytes(memoryview(value))
        except (TypeError, UnicodeEncodeError) as error:
            raise IncorrectParameterError(f"custom metadata {key!r} cannot be stored: {error}") from None
    return MappingProxyType(checked)


def _hash_map_order(keys: Mapping[str, object]) -> list[str]:
    """Keys in the order of a Java HashMap: BookKeeper reads custom metadata into one, and writes it in its order."""
    buckets = 16
    while len(keys) > buckets * 3 // 4:
        buckets *= 2

    def bucket(key: str) -> int:
        code = 0
        units = str(key).encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            code = 31 * code + (high << 8 | low) & 0xFFFFFFFF
        return (code ^ code >> 16) & (buckets - 1)

    return sorted(keys, key=bucket)


def _checked_ensembles(given: Iterable[tuple[int, Iterable[str]]], size: int) -> Ensembles:
    checked: list[tuple[int, tuple[str, ...]]] = []
    for first_entry, members in given:
        bookies = tuple(members)
        if len(bookies) != size:
            _refuse(f"the ensemble from entry {first_entry} on has {len(bookies)} bookies, not {size}")
        if not -_INT64 <= first_entry < _INT64:
            _refuse(f"the first entry {first_entry} of an ensemble does not fit in 64 bits")
        if checked and first_entry <= checked[-1][0]:
            _refuse(f"the ensemble from entry {first_entry} on must begin after entry {checked[-1][0]}")
        for bookie in bookies:
            if not bookie or not _IN_BOOKIE_IDS.issuperset(bookie) or bookie.lower() == "readonly":
                _refuse(f"{bookie!r} is not a valid bookie id")
        checked.append((first_entry, bookies))
    if not checked:
        _refuse("there must be at least one ensemble in the ledger")
    return tuple(checked)


# -- serialization -----------------------------------------------------------------------------------------------------


def has_metadata_header(data: bytes) -> bool:
    return data.startswith(_HEADER)


def parse(data: bytes, ledger_id: int, store_ctime: int | None = None, version: int = 0) -> LedgerMetadata:
    """Decode metadata; raise :class:`MetadataSerializationError` if it is malformed.

    ``store_ctime`` is the metadata service's creation time, used if the bytes of format 2 or 3 have none. Bytes after
    the message of format 3, and after the closing line of format 1, are ignored.
    """
    try:
        format_version, start = _read_header(data)
        arguments: dict[str, Any]
        if format_version == 3:
            arguments = arguments_of(read_delimited(data, start), store_ctime)
        else:
            from bookstand.storage.format import ledger_metadata_text

            if format_version == 2:
                arguments = arguments_of(ledger_metadata_text.read_message(data[start:]), store_ctime)
            else:
                arguments = ledger_metadata_text.read_lines(data[start:])
        return LedgerMetadata(ledger_id, format_version=format_version, version=version, **arguments)
    except ValueError as error:
        raise MetadataSerializationError(f"metadata of ledger {ledger_id}: {error}") from error


def serialize(metadata: LedgerMetadata) -> bytes:
    """Encode metadata in its own format."""
    header = _HEADER + b"%d\n" % metadata.format_version
    try:
        if metadata.format_version != 1 and metadata.digest_type is None:
            raise WireError(f"format {metadata.format_version} cannot be written without a digest type")
        if metadata.format_version == 3:
            return header + delimited(metadata)
        from bookstand.storage.format import ledger_metadata_text

        write = ledger_metadata_text.write_message if metadata.format_version == 2 else ledger_metadata_text.write_lines
        return header + write(metadata)
    except WireError as error:
        raise MetadataSerializationError(f"metadata of ledger {metadata.ledger_id}: {error}") from error


def _read_header(data: bytes) -> tuple[int, int]:
    if not data.startswith(_HEADER):
        raise WireError(f"it does not begin with {_HEADER.decode().rstrip()}")
    start = len(_HEADER)
    newline = data.find(b"\n", start, start + _VERSION_DIGITS)
    if newline < 0:
        raise WireError("the version number has no end")
    number = data[start:newline]
    if not number.removeprefix(b"+").isdigit():
        raise WireError(f"{number!r} is not a version number")
    if int(number) not in FORMATS:
        raise WireError(f"the format must be 1, 2 or 3, not {int(number)}")
    return int(number), newline + 1

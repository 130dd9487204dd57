# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LongProperty(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class CursorRecord(_message.Message):
    __slots__ = ("ledgerId", "entryId", "properties", "bitmap", "batches", "acked", "partial", "timeMs", "previousMarker", "pageEntries", "stateSize", "root", "node", "cursor", "kind", "generation", "userLedger", "part", "parts", "crc")
    LEDGERID_FIELD_NUMBER: _ClassVar[int]
    ENTRYID_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BITMAP_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    TIMEMS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUSMARKER_FIELD_NUMBER: _ClassVar[int]
    PAGEENTRIES_FIELD_NUMBER: _ClassVar[int]
    STATESIZE_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    USERLEDGER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    ledgerId: int
    entryId: int
    properties: _containers.RepeatedCompositeFieldContainer[LongProperty]
    bitmap: bytes
    batches: bytes
    acked: int
    partial: int
    timeMs: int
    previousMarker: int
    pageEntries: int
    stateSize: int
    root: bytes
    node: _containers.RepeatedScalarFieldContainer[bytes]
    cursor: str
    kind: int
    generation: int
    userLedger: int
    part: int
    parts: int
    crc: int
    def __init__(self, ledgerId: _Optional[int] = ..., entryId: _Optional[int] = ..., properties: _Optional[_Iterable[_Union[LongProperty, _Mapping]]] = ..., bitmap: _Optional[bytes] = ..., batches: _Optional[bytes] = ..., acked: _Optional[int] = ..., partial: _Optional[int] = ..., timeMs: _Optional[int] = ..., previousMarker: _Optional[int] = ..., pageEntries: _Optional[int] = ..., stateSize: _Optional[int] = ..., root: _Optional[bytes] = ..., node: _Optional[_Iterable[bytes]] = ..., cursor: _Optional[str] = ..., kind: _Optional[int] = ..., generation: _Optional[int] = ..., userLedger: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., crc: _Optional[int] = ...) -> None: ...

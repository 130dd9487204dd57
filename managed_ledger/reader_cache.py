"""LRU cache of readers of a topic's ledgers."""

from __future__ import annotations

from collections import OrderedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from bookstand.ledger.client import Client
    from bookstand.ledger.handles.handle import LedgerHandle

_MAX_OPEN = 64


class TopicReaders:
    """Readers by ledger id. Not thread-safe; callers hold the topic's lock."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._open: OrderedDict[int, LedgerHandle] = OrderedDict()

    def get(self, ledger_id: int) -> LedgerHandle:
        reader = self._open.get(ledger_id)
        if reader is None:
            reader = self._open[ledger_id] = self._client.open(ledger_id, False, b"", None)
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(ledger_id)
        return reader

    def discard(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            self._open.pop(ledger_id, None)

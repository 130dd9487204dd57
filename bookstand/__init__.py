"""bookstand: an embedded, crash-safe ledger store that stands in for Apache BookKeeper on one machine."""

from bookstand import errors
from bookstand.errors import BookstandError, LedgerError, StoreError
from bookstand.ledger.defaults import LedgerDefaults, bookkeeper_defaults, defaults
from bookstand.ledger.entry import Entry
from bookstand.storage.pending import Pending
from bookstand.store import Store, open, temporary

__all__ = [
    # a store
    "Store",
    "open",
    "temporary",
    # what it is opened with
    "LedgerDefaults",
    "bookkeeper_defaults",
    "defaults",
    # what it gives
    "Entry",
    "Pending",
    # what it raises
    "BookstandError",
    "LedgerError",
    "StoreError",
    "errors",
]

__version__ = "0.1.0"

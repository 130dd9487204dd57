"""bookstand: an embedded, crash-safe ledger store that stands in for Apache BookKeeper on one machine."""

from bookstand import errors
from bookstand.errors import BookstandError, LedgerError, StoreError
from bookstand.ledger.defaults import LedgerDefaults, bookkeeper_defaults, defaults
from bookstand.ledger.handles.entry import Entry
from bookstand.proto.expansion import ExpansionLimits
from bookstand.storage.commit.futures import Pending
from bookstand.store import Store, open, temporary

__all__ = [
    # store
    "Store",
    "open",
    "temporary",
    # settings
    "BrokerConf",
    "CursorConfig",
    "ExpansionLimits",
    "LedgerDefaults",
    "MultiplierRedeliveryBackoff",
    "SubscriptionConfig",
    "TopicConfig",
    "bookkeeper_defaults",
    "defaults",
    # results
    "Entry",
    "Pending",
    # errors
    "BookstandError",
    "LedgerError",
    "StoreError",
    "errors",
]

__version__ = "0.1.0"

# Imported on first use: the modules for topics take a tenth of a second to load, and ledgers do not need them.
_LAZY_IMPORTS = {
    "BrokerConf": "bookstand.managed_ledger.broker_conf",
    "CursorConfig": "bookstand.cursor.config",
    "MultiplierRedeliveryBackoff": "bookstand.delivery.subscription.backoff",
    "SubscriptionConfig": "bookstand.delivery.topic_config",
    "TopicConfig": "bookstand.delivery.topic_config",
}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.cursor.config import CursorConfig
    from bookstand.delivery.subscription.backoff import MultiplierRedeliveryBackoff
    from bookstand.delivery.topic_config import SubscriptionConfig, TopicConfig
    from bookstand.managed_ledger.broker_conf import BrokerConf
else:

    def __getattr__(name: str) -> object:
        module = _LAZY_IMPORTS.get(name)
        if module is None:
            raise AttributeError(f"module 'bookstand' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(module), name)

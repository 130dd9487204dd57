"""How topics and subscriptions work."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import Self

from bookstand.cursor.config import CursorConfig
from bookstand.delivery.backoff import RedeliveryBackoff
from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.negative_acks import DELAY_MILLIS
from bookstand.delivery.times import Span, span_of
from bookstand.errors import IncorrectParameterError
from bookstand.ledger.broker_conf import TOPIC, BrokerConf
from bookstand.ledger.compression import NUMBERS
from bookstand.ledger.managed import MAX_BYTES_PER_LEDGER, MAX_ENTRIES_PER_LEDGER, MAX_LEDGER_AGE

SHARED, EXCLUSIVE = "shared", "exclusive"
TYPES = (SHARED, EXCLUSIVE)


@dataclass(frozen=True, kw_only=True)
class TopicConfig(DelayedDeliveryConfig):
    """How a topic keeps its messages, and those of them that are delayed."""

    max_entries_per_ledger: int = MAX_ENTRIES_PER_LEDGER
    max_bytes_per_ledger: int = MAX_BYTES_PER_LEDGER
    max_ledger_age: float = MAX_LEDGER_AGE
    """A ledger that has so many entries or bytes, or is so many seconds old, is followed by the next."""

    compression: str = "NONE"
    """Of what is published: NONE, LZ4, ZLIB, ZSTD or SNAPPY. Needs ``bookstand[codecs]``."""

    trim_consumed: bool = True
    """Delete ledgers by itself once nobody needs them. Without, :meth:`Topic.trim` does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compression not in NUMBERS:
            raise IncorrectParameterError(f"compression is one of {', '.join(NUMBERS)}, not {self.compression!r}")
        _check_flag("trim_consumed", self.trim_consumed)
        _check_number("max_entries_per_ledger", self.max_entries_per_ledger, 1)
        _check_number("max_bytes_per_ledger", self.max_bytes_per_ledger, 1)
        age = self.max_ledger_age
        if isinstance(age, bool) or not isinstance(age, int | float) or not age > 0:
            raise IncorrectParameterError(f"max_ledger_age is a positive number of seconds, not {age!r}")

    @classmethod
    def from_broker_conf(cls, path: str | PathLike[str]) -> Self:
        """Read the settings of topics from Pulsar's ``broker.conf``. Those that the file does not set keep their
        defaults here; :attr:`BrokerConf.unknown` lists those without a counterpart."""
        return BrokerConf.read(path).build_config(cls, TOPIC)


@dataclass(frozen=True, kw_only=True)
class SubscriptionConfig:
    """How a subscription delivers. Spans are milliseconds or timedeltas."""

    type: str = SHARED
    """``"shared"``: any number of consumers, each gets a part. ``"exclusive"``: one consumer, and order stands."""

    cursor: CursorConfig = field(default_factory=CursorConfig)
    """How what is acknowledged is kept."""

    delayed_delivery_tick_time_millis: int | None = None
    """How exact deliveries are; None: as the topic says."""

    ack_deadline: Span | None = None
    """What a consumer holds longer is delivered again. None: it may hold it for as long as it is there."""

    nack_delay: Span = DELAY_MILLIS
    nack_backoff: RedeliveryBackoff | None = None
    """After which time what was negatively acknowledged comes again; a backoff decides in place of the delay."""

    durable_nacks: bool = False
    """Keep them in a ledger, so that a restart does not forget for how long. Without, what was negatively acknowledged
    comes again at once after a restart."""

    max_redeliveries: int | None = None
    """A message that was delivered again so often goes to the dead-letter topic instead of once more."""

    dead_letter_topic: str | None = None
    """None: ``<topic>-<subscription>-DLQ``, as Pulsar names it."""

    time_to_live: Span | None = None
    """Older messages are acknowledged and not delivered. A delayed one ages from when it was to be delivered."""

    max_unacked_messages: int = 50_000
    """So many entries are out at once at most."""

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise IncorrectParameterError(f"type is one of {', '.join(map(repr, TYPES))}, not {self.type!r}")
        if not isinstance(self.cursor, CursorConfig):
            raise IncorrectParameterError(f"cursor is a CursorConfig, not {self.cursor!r}")
        if not self.cursor.batch_index_acks:
            raise IncorrectParameterError(
                "a subscription acknowledges messages of batches, which needs batch_index_acks"
            )
        span_of("nack_delay", self.nack_delay)
        for name in ("ack_deadline", "time_to_live"):
            span = getattr(self, name)
            if span is not None and span_of(name, span) == 0:
                raise IncorrectParameterError(f"{name} is a span of a millisecond or more")
        _check_flag("durable_nacks", self.durable_nacks)
        _check_number("max_unacked_messages", self.max_unacked_messages, 1)
        if self.max_redeliveries is not None:
            _check_number("max_redeliveries", self.max_redeliveries, 0)
        if self.delayed_delivery_tick_time_millis is not None:
            _check_number("delayed_delivery_tick_time_millis", self.delayed_delivery_tick_time_millis, 1)
        if self.dead_letter_topic is not None and (
            not isinstance(self.dead_letter_topic, str) or not self.dead_letter_topic
        ):
            raise IncorrectParameterError(f"dead_letter_topic is a topic's name, not {self.dead_letter_topic!r}")
        if self.nack_backoff is not None and not callable(getattr(self.nack_backoff, "next", None)):
            raise IncorrectParameterError(f"a backoff has a method next(redelivery_count), {self.nack_backoff!r} none")

    @property
    def is_exclusive(self) -> bool:
        return self.type == EXCLUSIVE


def _check_flag(name: str, value: object) -> None:
    if type(value) is not bool:
        raise IncorrectParameterError(f"{name} is True or False, not {value!r}")


def _check_number(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise IncorrectParameterError(f"{name} is a number from {least} up, not {value!r}")

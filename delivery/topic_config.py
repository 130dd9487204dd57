"""Settings of topics and subscriptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Self

from bookstand.cursor.config import CursorConfig, WhileOpen
from bookstand.delivery.config import DELAYED_WHILE_OPEN, DelayedDeliveryConfig
from bookstand.delivery.nacks.tracker import DELAY_MILLIS
from bookstand.delivery.nacks.tracker import PRECISION_BITS as NACK_PRECISION_BITS
from bookstand.delivery.subscription.backoff import RedeliveryBackoff
from bookstand.delivery.time_arguments import Span, to_millis
from bookstand.delivery.time_index.precision import MAX_BITS, PowerOfTwoPrecision, Precision, relative
from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger.broker_conf import TOPIC, BrokerConf
from bookstand.managed_ledger.managed_ledger import MAX_BYTES_PER_LEDGER, MAX_ENTRIES_PER_LEDGER, MAX_LEDGER_AGE
from bookstand.managed_ledger.message.compression import NUMBERS

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock

SHARED, EXCLUSIVE = "shared", "exclusive"
TYPES = (SHARED, EXCLUSIVE)


@dataclass(frozen=True, kw_only=True)
class TopicConfig(DelayedDeliveryConfig):
    """Settings of a topic, including delayed delivery."""

    max_entries_per_ledger: int = MAX_ENTRIES_PER_LEDGER
    max_bytes_per_ledger: int = MAX_BYTES_PER_LEDGER
    max_ledger_age: float = MAX_LEDGER_AGE
    """Limits of a ledger, in entries, bytes and seconds. Reaching one of them starts a new ledger."""

    compression: str = "NONE"
    """Codec of published messages: NONE, LZ4, ZLIB, ZSTD or SNAPPY. LZ4, ZSTD and SNAPPY need ``bookstand[codecs]``."""

    trim_consumed: bool = True
    """Delete fully acknowledged ledgers automatically. If False, :meth:`Topic.trim` deletes them."""

    auto_skip_non_recoverable_data: bool = False
    """Acknowledge damaged entries unread in every subscription, and count them in its statistics. If False, a
    subscription raises once for each, delivers the others, and retains the damaged entry in its backlog until it is
    acknowledged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compression not in NUMBERS:
            raise IncorrectParameterError(f"compression must be one of {', '.join(NUMBERS)}, not {self.compression!r}")
        _check_flag("trim_consumed", self.trim_consumed)
        _check_flag("auto_skip_non_recoverable_data", self.auto_skip_non_recoverable_data)
        _check_number("max_entries_per_ledger", self.max_entries_per_ledger, 1)
        _check_number("max_bytes_per_ledger", self.max_bytes_per_ledger, 1)
        age = self.max_ledger_age
        if isinstance(age, bool) or not isinstance(age, int | float) or not age > 0:
            raise IncorrectParameterError(f"max_ledger_age must be a positive number of seconds, not {age!r}")

    @classmethod
    def from_broker_conf(cls, path: str | PathLike[str]) -> Self:
        """Read the settings of topics from Pulsar's ``broker.conf``. Settings missing from the file have their
        defaults; :attr:`BrokerConf.unknown` lists those without a counterpart."""
        return BrokerConf.read(path).build_config(cls, TOPIC)


@dataclass(frozen=True, kw_only=True)
class SubscriptionConfig:
    """Settings of a subscription. Spans are milliseconds or timedeltas."""

    type: str = SHARED
    """``"shared"``: any number of consumers. ``"exclusive"``: one consumer, with order preserved."""

    cursor: CursorConfig = field(default_factory=CursorConfig)
    """Settings of the subscription's cursor."""

    delayed_delivery_tick_time_millis: int | None = None
    """Precision of delivery times, in milliseconds. None means the topic's setting."""

    delayed_delivery_relative_precision: float | None = None
    """Deliver delayed messages early by up to this fraction of their delay, in addition to the tick, to save memory:
    0.01 saves most of it. Only for in-memory trackers without strict delivery. None means that only the tick counts."""

    ack_deadline: Span | None = None
    """Time after which an unacknowledged message is redelivered. None means no limit while its consumer is open."""

    nack_delay: Span = DELAY_MILLIS
    nack_backoff: RedeliveryBackoff | None = None
    """Delay before negatively acknowledged messages are redelivered. A backoff replaces the fixed delay."""

    negative_ack_precision_bits: int = NACK_PRECISION_BITS
    """Redeliver them in buckets of 2^bits milliseconds, early by less than a bucket and never late. 0 means exact
    milliseconds. Pulsar's ``negativeAckPrecisionBitCnt``."""

    negative_ack_relative_precision: float | None = None
    """Alternative to bits: redeliver them early by less than this fraction of their delay, and never late."""

    durable_nacks: bool = False
    """Record the time, batch index and redelivery count of negatively acknowledged messages in a ledger, so that a
    restart does not change their times. If False, a restart redelivers them immediately, except for recorded ones."""

    max_redeliveries: int | None = None
    """Maximum number of redeliveries before a message goes to the dead-letter topic; None means unlimited."""

    dead_letter_topic: str | None = None
    """Name of the dead-letter topic. None means ``<topic>-<subscription>-DLQ``, as in Pulsar."""

    time_to_live: Span | None = None
    """Age at which messages are acknowledged instead of delivered, from their publish or delivery time on."""

    max_unacked_messages: int = 50_000
    """Maximum number of entries that are delivered and not yet acknowledged."""

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise IncorrectParameterError(f"type must be one of {', '.join(map(repr, TYPES))}, not {self.type!r}")
        if not isinstance(self.cursor, CursorConfig):
            raise IncorrectParameterError(f"cursor must be a CursorConfig, not {self.cursor!r}")
        if not self.cursor.batch_index_acks:
            raise IncorrectParameterError(
                "cursor must have batch_index_acks=True, because subscriptions acknowledge single messages of batches"
            )
        to_millis("nack_delay", self.nack_delay)
        for name in ("ack_deadline", "time_to_live"):
            span = getattr(self, name)
            if span is not None and to_millis(name, span) == 0:
                raise IncorrectParameterError(f"{name} must be at least one millisecond")
        self._check_precisions()
        _check_flag("durable_nacks", self.durable_nacks)
        _check_number("max_unacked_messages", self.max_unacked_messages, 1)
        if self.max_redeliveries is not None:
            _check_number("max_redeliveries", self.max_redeliveries, 0)
        if self.delayed_delivery_tick_time_millis is not None:
            _check_number("delayed_delivery_tick_time_millis", self.delayed_delivery_tick_time_millis, 1)
        if self.dead_letter_topic is not None and (
            not isinstance(self.dead_letter_topic, str) or not self.dead_letter_topic
        ):
            raise IncorrectParameterError(
                f"dead_letter_topic must be the name of a topic, not {self.dead_letter_topic!r}"
            )
        if self.nack_backoff is not None and not callable(getattr(self.nack_backoff, "next", None)):
            raise IncorrectParameterError(
                f"nack_backoff must have a method next(redelivery_count), {self.nack_backoff!r} has none"
            )

    def _check_precisions(self) -> None:
        bits = self.negative_ack_precision_bits
        if type(bits) is not int or not 0 <= bits <= MAX_BITS:
            raise IncorrectParameterError(
                f"negative_ack_precision_bits must be an integer from 0 to {MAX_BITS}, not {bits!r}"
            )
        for name in ("negative_ack_relative_precision", "delayed_delivery_relative_precision"):
            fraction = getattr(self, name)
            if fraction is not None and (type(fraction) is not float or not 0 < fraction < 1):
                raise IncorrectParameterError(f"{name} must be a fraction between 0 and 1 or None, not {fraction!r}")
        if self.negative_ack_relative_precision is not None and bits != NACK_PRECISION_BITS:
            raise IncorrectParameterError(
                "negative_ack_precision_bits and negative_ack_relative_precision exclude each other: set one of them, "
                f"not {bits} and {self.negative_ack_relative_precision}"
            )

    def nack_precision(self, clock: Clock) -> Precision:
        if self.negative_ack_relative_precision is None:
            return PowerOfTwoPrecision(self.negative_ack_precision_bits)
        return relative(self.negative_ack_relative_precision, clock=clock)

    @property
    def is_exclusive(self) -> bool:
        return self.type == EXCLUSIVE


TOPIC_WHILE_OPEN = WhileOpen(
    changeable=DELAYED_WHILE_OPEN.changeable
    | {
        "auto_skip_non_recoverable_data",
        "compression",
        "max_bytes_per_ledger",
        "max_entries_per_ledger",
        "max_ledger_age",
        "trim_consumed",
    },
    fixed=DELAYED_WHILE_OPEN.fixed,
    remedy=DELAYED_WHILE_OPEN.remedy,
)
"""The settings of :class:`TopicConfig`, including delayed delivery."""

SUBSCRIPTION_WHILE_OPEN = WhileOpen(
    changeable=frozenset(
        {
            "ack_deadline",
            # CursorConfig checks its own settings.
            "cursor",
            "dead_letter_topic",
            "delayed_delivery_tick_time_millis",
            "max_redeliveries",
            "max_unacked_messages",
            "nack_backoff",
            "nack_delay",
            "time_to_live",
        }
    ),
    fixed=frozenset(
        {
            "delayed_delivery_relative_precision",
            "durable_nacks",
            "negative_ack_precision_bits",
            "negative_ack_relative_precision",
            "type",
        }
    ),
    remedy="close the subscription first",
)
"""The settings of :class:`SubscriptionConfig`."""


def _check_flag(name: str, value: object) -> None:
    if type(value) is not bool:
        raise IncorrectParameterError(f"{name} must be True or False, not {value!r}")


def _check_number(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise IncorrectParameterError(f"{name} must be an integer of {least} or more, not {value!r}")

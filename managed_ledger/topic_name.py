"""Names of topics, and the paths of their nodes in Pulsar's layout.

``persistent://tenant/namespace/topic`` has the node ``/managed-ledgers/tenant/namespace/persistent/topic``, with the
last component URL-encoded. A cursor's node is a child of it. Any other name is URL-encoded as a single component, so
that its node cannot be mistaken for the cursor of another topic.
"""

from __future__ import annotations

from collections import namedtuple
from fnmatch import fnmatchcase
from urllib.parse import quote_plus, unquote_plus

from bookstand.errors import IncorrectParameterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NamedTuple

    class TopicName(NamedTuple):
        """Components of a topic's name; tenant and namespace may be empty."""

        tenant: str
        namespace: str
        topic: str

else:
    TopicName = namedtuple("TopicName", ["tenant", "namespace", "topic"])

ROOT = "/managed-ledgers"
TOPIC_LABEL, CURSOR_LABEL = "pulsar/managed-ledger", "pulsar/cursor"
DELAYED_BUCKET = b"delayed-index-bucket"
BUCKET_KEY_LABEL, BUCKET_TOPIC_LABEL, BUCKET_CURSOR_LABEL = (
    f"pulsar/delayedIndex{name}" for name in ("BucketKey", "Topic", "Cursor")
)
RESCHEDULED = b"delayed-index-rescheduled"
RESCHEDULED_LABEL, RESCHEDULED_TOPIC_LABEL, RESCHEDULED_CURSOR_LABEL = (
    f"bookstand/{name}" for name in ("property", "topic", "cursor")
)
_NAMED_BY_PROPERTY = (
    ((b"pulsar", DELAYED_BUCKET), BUCKET_KEY_LABEL, BUCKET_TOPIC_LABEL, BUCKET_CURSOR_LABEL),
    ((b"bookstand", RESCHEDULED), RESCHEDULED_LABEL, RESCHEDULED_TOPIC_LABEL, RESCHEDULED_CURSOR_LABEL),
)
_SCHEME = "persistent://"
_DOMAIN = "persistent"


def fits(name: str, pattern: str) -> bool:
    """Return True if ``pattern`` is the topic's name, a suffix of it after a slash, or a glob that matches it."""
    return name == pattern or name.endswith(f"/{pattern}") or fnmatchcase(name, pattern)


def parts_of(name: str) -> TopicName:
    """Split a topic's name into its components."""
    if name.startswith(_SCHEME):
        parts = name.removeprefix(_SCHEME).split("/", 2)
        if len(parts) != 3 or not all(parts):
            raise IncorrectParameterError(f"a full topic name is persistent://tenant/namespace/topic, not {name!r}")
        return TopicName(*parts)
    parts = name.split("/")
    if len(parts) == 4 and parts[2] == _DOMAIN and all(parts):
        return TopicName(parts[0], parts[1], unquote_plus(parts[3]))
    return TopicName("", "", name)


def node_of(name: str) -> str:
    """Return the path of the node that stores a topic's record."""
    if not isinstance(name, str) or not name:
        raise IncorrectParameterError(f"a topic name must be a non-empty string, not {name!r}")
    tenant, namespace, topic = parts_of(name)
    if tenant:
        return f"{ROOT}/{tenant}/{namespace}/{_DOMAIN}/{quote_plus(topic)}"
    return f"{ROOT}/{quote_plus(topic)}"


def cursor_node_of(topic: str, cursor: str) -> str:
    """Return the path of the node that stores a cursor's record."""
    if not isinstance(cursor, str) or not cursor:
        raise IncorrectParameterError(f"a cursor name must be a non-empty string, not {cursor!r}")
    return f"{node_of(topic)}/{quote_plus(cursor)}"


def ledger_labels(topic: str, cursor: str | None = None) -> dict[str, bytes]:
    """Return the custom metadata that Pulsar gives to the ledgers of a topic or of one of its cursors."""
    labels = {"application": b"pulsar", "component": b"managed-ledger", TOPIC_LABEL: topic.encode()}
    return labels if cursor is None else {**labels, CURSOR_LABEL: cursor.encode()}


def is_ledger_of(labels: Mapping[str, bytes], topic: str, cursor: str) -> bool:
    """Return True if the labels belong to a ledger of the cursor, written by bookstand or Pulsar."""
    return _has_label(labels, TOPIC_LABEL, topic) and _has_label(labels, CURSOR_LABEL, cursor)


def property_of(labels: Mapping[str, bytes], topic: str, cursor: str) -> str | None:
    """Return the name of the cursor property that refers to a ledger with these labels. The ledger is a
    delayed-delivery bucket snapshot or a reschedule log. None for any other ledger, and for those of other cursors."""
    for kind, by_property, of_topic, of_cursor in _NAMED_BY_PROPERTY:
        if (
            (labels.get("application"), labels.get("component")) == kind
            and by_property in labels
            and _has_label(labels, of_topic, topic)
            and _has_label(labels, of_cursor, cursor)
        ):
            return labels[by_property].decode(errors="replace")
    return None


def _has_label(labels: Mapping[str, bytes], label: str, name: str) -> bool:
    """Return True if the label's value is ``name``, in one of the forms that bookstand and Pulsar write."""
    forms = name, quote_plus(name), node_of(name).removeprefix(f"{ROOT}/")
    return labels.get(label) in [form.encode() for form in forms]


def cursor_of(node: str) -> str:
    """Return a cursor's name from the last component of its path."""
    return unquote_plus(node)

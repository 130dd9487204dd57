"""Settings from a broker.conf: the format of the file, and what each key becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bookstand
from bookstand import BrokerConf, CursorConfig, TopicConfig
from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger.broker_conf import CURSOR, SETTINGS, TOPIC, parse_properties

PACKAGE = "org.apache.pulsar.broker.delayed"
EXCERPT = f"""
### --- General broker settings --- ###

# Where the metadata is
metadataStoreUrl=zk:localhost:2181
clusterName=europe
! a comment of the other kind

# --- Delayed delivery
delayedDeliveryEnabled=true
delayedDeliveryTrackerFactoryClassName={PACKAGE}.BucketDelayedDeliveryTrackerFactory
delayedDeliveryTickTimeMillis=250
isDelayedDeliveryDeliverAtTimeStrict=true
delayedDeliveryMinIndexCountPerBucket : 20000
delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds 60
delayedDeliveryMaxIndexesPerBucketSnapshotSegment=-1
delayedDeliveryMaxNumBuckets=50
delayedDeliveryFixedDelayDetectionLookahead=0
delayedDeliveryMaxDelayInMillis=0
delayedDeliverySharedIndexEnabled = TRUE

# --- Managed ledger
managedLedgerMaxEntriesPerLedger=10000
managedLedgerMinLedgerRolloverTimeMinutes=10
managedLedgerMaxLedgerRolloverTimeMinutes=60
managedLedgerMaxSizePerLedgerMbytes=2048
managedLedgerCacheSizeMB=

# --- Cursors
acknowledgmentAtBatchIndexLevelEnabled=true
managedLedgerDefaultMarkDeleteRateLimit=0.5
managedLedgerCursorPositionFlushSeconds=30
managedLedgerCursorMaxEntriesPerLedger=1000
managedLedgerCursorRolloverTimeInSeconds=600
managedLedgerMaxUnackedRangesToPersist=200000
managedLedgerMaxUnackedRangesToPersistInMetadataStore=5000
managedLedgerMaxUnackedRangesToPersistInZooKeeper=-1
managedLedgerMaxBatchDeletedIndexToPersist=300
managedLedgerPersistIndividualAckAsLongArray=false
managedCursorInfoCompressionType=LZ4
managedCursorInfoCompressionThresholdInBytes=0
maxIndividualAckCacheBytesPerCursor=\\
    1048576
enableLruCacheMaxUnackedRanges=false
maxPerCursorMetadataSizeInBytes=1024
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(EXCERPT)
    return path


def with_lines(folder: Path, *lines: str) -> Path:
    path = folder / "broker.conf"
    path.write_text("\n".join(lines) + "\n")
    return path


def read(folder: Path, *lines: str) -> dict[str, object]:
    """Fields of both configs that differ from their defaults."""
    path = with_lines(folder, *lines)
    found: dict[str, object] = {}
    for kind in (TopicConfig, CursorConfig):
        config = kind.from_broker_conf(path)
        for field in fields(config):
            value = getattr(config, field.name)
            if value != getattr(kind(), field.name):
                found[f"{kind.__name__}.{field.name}"] = value
    return found


# -- both configs ------------------------------------------------------------------------------------------------------


def test_a_topic_config_is_read_from_pulsars_file(conf: Path) -> None:
    assert TopicConfig.from_broker_conf(conf) == TopicConfig(
        delayed_delivery_tracker="bucket",
        delayed_delivery_tick_time_millis=250,
        is_delayed_delivery_deliver_at_time_strict=True,
        delayed_delivery_fixed_delay_detection_lookahead=0,
        delayed_delivery_min_index_count_per_bucket=20_000,
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=60,
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=-1,
        delayed_delivery_max_num_buckets=50,
        delayed_delivery_shared_index_enabled=True,
        max_entries_per_ledger=10_000,
        max_bytes_per_ledger=2 << 30,
        max_ledger_age=3600,
    )


def test_a_cursor_config_is_read_from_pulsars_file(conf: Path) -> None:
    assert CursorConfig.from_broker_conf(str(conf)) == CursorConfig(
        max_individual_ack_cache_bytes=1 << 20,
        enable_lru_cache_max_unacked_ranges=False,
        max_per_cursor_metadata_size_in_bytes=1024,
        flush_interval=30,
        throttle_mark_delete=0.5,
        max_entries_per_cursor_ledger=1000,
        max_cursor_ledger_age=600,
        batch_index_acks=True,
        persist_as_long_array=False,
        max_unacked_ranges_to_persist=200_000,
        max_unacked_ranges_in_metadata_store=5000,
        max_batch_deleted_index_to_persist=300,
        compression="LZ4",
        compression_threshold=0,
    )


def test_keys_without_a_counterpart_are_listed_in_the_order_of_the_file(conf: Path) -> None:
    assert BrokerConf.read(conf).unknown == (
        "metadataStoreUrl",
        "clusterName",
        "delayedDeliveryEnabled",
        "delayedDeliveryMaxDelayInMillis",
        "managedLedgerMinLedgerRolloverTimeMinutes",
        "managedLedgerCacheSizeMB",
    )


def test_keys_without_a_counterpart_are_logged(conf: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "bookstand"):
        TopicConfig.from_broker_conf(conf)
    (record,) = caplog.records
    assert "6 settings have no counterpart" in record.message
    assert "clusterName" in record.message
    assert "managedLedgerCursorMaxEntriesPerLedger" not in record.message


def test_every_known_key_is_a_field_of_its_config() -> None:
    names = {TOPIC: TopicConfig, CURSOR: CursorConfig}
    for key, setting in SETTINGS.items():
        assert setting.field in {field.name for field in fields(names[setting.config])}, key


def test_a_file_without_settings_gives_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "# nothing", "") == {}
    assert BrokerConf.read(tmp_path / "broker.conf").unknown == ()


@pytest.mark.parametrize("key", SETTINGS)
@pytest.mark.parametrize("value", ["", " ", "\\u0020\\t"])
def test_an_empty_value_leaves_the_default(tmp_path: Path, key: str, value: str) -> None:
    assert read(tmp_path, f"{key}={value}") == {}


def test_an_empty_last_line_hides_the_ones_before_it(tmp_path: Path) -> None:
    key = "managedLedgerMaxEntriesPerLedger"
    assert read(tmp_path, f"{key}=7", f"{key}=") == {}
    assert read(tmp_path, f"{key}=", f"{key}=7", f"{key}=8") == {"TopicConfig.max_entries_per_ledger": 8}


def test_a_topic_with_the_configs_of_a_file_works(conf: Path) -> None:
    with bookstand.temporary() as store:
        topic = store.topic("persistent://tenant/namespace/orders", TopicConfig.from_broker_conf(conf))
        cursor = CursorConfig.from_broker_conf(conf)
        consumer = topic.subscription("billing", bookstand.SubscriptionConfig(cursor=cursor)).consumer()
        topic.publish(b"first")
        (message,) = consumer.receive(timeout=10)
        assert message.payload == b"first"
        consumer.ack(message)


# -- values as Pulsar reads them ---------------------------------------------------------------------------------------

LIMIT = "CursorConfig.max_per_cursor_metadata_size_in_bytes"
STORE = "CursorConfig.max_unacked_ranges_in_metadata_store"
AS_PULSAR: Mapping[str, dict[str, object]] = {
    # Full with each entry.
    "managedLedgerMaxEntriesPerLedger=0": {"TopicConfig.max_entries_per_ledger": 1},
    "managedLedgerMaxEntriesPerLedger=-1": {"TopicConfig.max_entries_per_ledger": 1},
    "managedLedgerMaxSizePerLedgerMbytes=0": {"TopicConfig.max_bytes_per_ledger": 1},
    "managedLedgerMaxSizePerLedgerMbytes=-1": {"TopicConfig.max_bytes_per_ledger": 1},
    "managedLedgerMaxLedgerRolloverTimeMinutes=10": {"TopicConfig.max_ledger_age": 600},
    "managedLedgerMinLedgerRolloverTimeMinutes=0\nmanagedLedgerMaxLedgerRolloverTimeMinutes=0": {
        "TopicConfig.max_entries_per_ledger": 1
    },
    "managedLedgerMinLedgerRolloverTimeMinutes=-1\nmanagedLedgerMaxLedgerRolloverTimeMinutes=-1\n"
    "managedLedgerMaxEntriesPerLedger=100": {"TopicConfig.max_entries_per_ledger": 1},
    "managedLedgerMinLedgerRolloverTimeMinutes=\nmanagedLedgerMaxLedgerRolloverTimeMinutes=240": {},
    # No limit, or none at all.
    "delayedDeliveryMaxNumBuckets=-1": {},
    "delayedDeliveryMaxNumBuckets=0": {"TopicConfig.delayed_delivery_max_num_buckets": 0},
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment=-1": {
        "TopicConfig.delayed_delivery_max_indexes_per_bucket_snapshot_segment": -1
    },
    "delayedDeliveryMinIndexCountPerBucket=-1": {"TopicConfig.delayed_delivery_min_index_count_per_bucket": -1},
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds=0": {
        "TopicConfig.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": 0
    },
    "delayedDeliveryFixedDelayDetectionLookahead=-1": {
        "TopicConfig.delayed_delivery_fixed_delay_detection_lookahead": -1
    },
    f"delayedDeliveryTrackerFactoryClassName={PACKAGE}.InMemoryDelayedDeliveryTrackerFactory": {},
    "delayedDeliveryTrackerFactoryClassName=BucketDelayedDeliveryTrackerFactory": {
        "TopicConfig.delayed_delivery_tracker": "bucket"
    },
    "autoSkipNonRecoverableData=true": {"TopicConfig.auto_skip_non_recoverable_data": True},
    "isDelayedDeliveryDeliverAtTimeStrict=True": {"TopicConfig.is_delayed_delivery_deliver_at_time_strict": True},
    "managedLedgerMaxUnackedRangesToPersist=0": {"CursorConfig.max_unacked_ranges_to_persist": 0},
    "managedLedgerMaxUnackedRangesToPersist=-1": {"CursorConfig.max_unacked_ranges_to_persist": 0},
    "managedLedgerMaxBatchDeletedIndexToPersist=-1": {"CursorConfig.max_batch_deleted_index_to_persist": 0},
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore=-1": {STORE: 0},
    # The deprecated name of it counts when it is positive.
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper=-1": {},
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper=0": {},
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper=7": {STORE: 7},
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper=7\nmanagedLedgerMaxUnackedRangesToPersistInMetadataStore=9": {
        STORE: 7
    },
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper=-1\nmanagedLedgerMaxUnackedRangesToPersistInMetadataStore=9": {
        STORE: 9
    },
    "managedLedgerDefaultMarkDeleteRateLimit=0": {"CursorConfig.throttle_mark_delete": 0.0},
    "managedLedgerDefaultMarkDeleteRateLimit=1e1": {"CursorConfig.throttle_mark_delete": 10.0},
    "managedLedgerDefaultMarkDeleteRateLimit=2.5d": {"CursorConfig.throttle_mark_delete": 2.5},
    "managedLedgerCursorMaxEntriesPerLedger=0": {"CursorConfig.max_entries_per_cursor_ledger": 1},
    "managedLedgerCursorRolloverTimeInSeconds=-1": {"CursorConfig.max_cursor_ledger_age": 0},
    "managedCursorInfoCompressionType=NONE": {},
    "managedCursorInfoCompressionType=ZSTD": {"CursorConfig.compression": "ZSTD"},
    "managedCursorInfoCompressionThresholdInBytes=-1": {"CursorConfig.compression_threshold": 0},
    "acknowledgmentAtBatchIndexLevelEnabled=false": {"CursorConfig.batch_index_acks": False},
    # The limit of PIP-299 under both of its names, and the switch that was shipped.
    "maxPerCursorMetadataSizeInBytes=0": {LIMIT: 0},
    "maxPerCursorMetadataSizeInBytes=-1": {LIMIT: -1},
    "maxUnPersistAckRecordsBytesPerSubscription=2048": {LIMIT: 2048},
    "maxUnPersistAckRecordsBytesPerSubscription=2048\nmaxPerCursorMetadataSizeInBytes=2048": {LIMIT: 2048},
    "dispatcherPauseOnAckStatePersistentEnabled=false": {LIMIT: 0},
    "dispatcherPauseOnAckStatePersistentEnabled=true": {},
    "dispatcherPauseOnAckStatePersistentEnabled=false\nmaxPerCursorMetadataSizeInBytes=4096": {LIMIT: 4096},
    "dispatcherPauseOnAckStatePersistentEnabled=true\nmaxPerCursorMetadataSizeInBytes=0": {LIMIT: 0},
}


@pytest.mark.parametrize("lines", AS_PULSAR)
def test_values_mean_what_they_mean_to_pulsar(tmp_path: Path, lines: str) -> None:
    assert read(tmp_path, lines) == AS_PULSAR[lines]


def test_every_key_was_tried_with_a_value_of_its_own() -> None:
    tried = EXCERPT + "".join(AS_PULSAR)
    assert [key for key in SETTINGS if key not in tried] == []


# -- bad values --------------------------------------------------------------------------------------------------------

BAD = {
    "managedLedgerMaxEntriesPerLedger=many": "a 32-bit integer",
    "managedLedgerMaxEntriesPerLedger=1_000": "a 32-bit integer",
    "managedLedgerMaxEntriesPerLedger=2147483648": "a 32-bit integer",
    "managedLedgerMaxLedgerRolloverTimeMinutes=0": "at least managedLedgerMinLedgerRolloverTimeMinutes, 10",
    "managedLedgerMaxLedgerRolloverTimeMinutes=-1": "at least managedLedgerMinLedgerRolloverTimeMinutes, 10",
    "delayedDeliveryTickTimeMillis=0": "delayed_delivery_tick_time_millis",
    "delayedDeliveryTickTimeMillis=9223372036854775808": "a 64-bit integer",
    "delayedDeliveryTrackerFactoryClassName=com.acme.Factory": "trackers are not pluggable",
    "isDelayedDeliveryDeliverAtTimeStrict=yes": "true or false",
    "managedLedgerDefaultMarkDeleteRateLimit=-1": "throttle_mark_delete",
    "managedLedgerDefaultMarkDeleteRateLimit=NaN": "a decimal number",
    "managedLedgerCursorPositionFlushSeconds=0": "a 32-bit integer of 1 or more",
    "managedCursorInfoCompressionType=GZIP": "one of NONE, LZ4, ZLIB, ZSTD, SNAPPY",
    "managedCursorInfoCompressionType=lz4": "one of NONE, LZ4, ZLIB, ZSTD, SNAPPY",
    "maxPerCursorMetadataSizeInBytes=1023": "max_per_cursor_metadata_size_in_bytes",
    "maxIndividualAckCacheBytesPerCursor=-1": "max_individual_ack_cache_bytes",
    "maxUnPersistAckRecordsBytesPerSubscription=4096": "maxPerCursorMetadataSizeInBytes in line 2",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_value_is_rejected_with_its_file_line_key_and_rule(tmp_path: Path, line: str) -> None:
    path = with_lines(tmp_path, "# a comment", "maxPerCursorMetadataSizeInBytes=2048", "", line)
    if "=1023" in line:
        path = with_lines(tmp_path, "", "", "", line)
    key, value = line.split("=")
    kind = TopicConfig if key in SETTINGS and SETTINGS[key].config == TOPIC else CursorConfig
    with pytest.raises(IncorrectParameterError) as refused:
        kind.from_broker_conf(path)
    message = str(refused.value)
    assert message.startswith(f"{path}, line 4: {key}")
    assert value in message
    assert BAD[line] in message


def test_a_bad_value_of_the_other_config_does_not_matter(tmp_path: Path) -> None:
    path = with_lines(tmp_path, "managedLedgerCursorMaxEntriesPerLedger=x")
    assert TopicConfig.from_broker_conf(path) == TopicConfig()


def test_a_file_that_does_not_exist_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TopicConfig.from_broker_conf(tmp_path / "none.conf")


def test_a_broken_escape_is_rejected_with_its_line(tmp_path: Path) -> None:
    path = with_lines(tmp_path, "a=1", "b=\\u12x4")
    with pytest.raises(IncorrectParameterError, match=r"broker\.conf, line 2: .*\\u"):
        BrokerConf.read(path)


# -- the format --------------------------------------------------------------------------------------------------------

FORMAT = {
    "a=1\nb:2\nc 3\nd\t4\ne = 5\nf : 6\n  g=7": "a=1 b=2 c=3 d=4 e=5 f=6 g=7",
    "a==1\nb=:2\nc::3\nd  = =4": "a==1 b=:2 c=:3 d==4",
    "# a=1\n! b=2\n  # c=3\nd=4 # no comment": "d=4 # no comment",
    "a=1\\\n   2\\\n\t3\nb=4": "a=123 b=4",
    "a=1\\\\\nb=2": "a=1\\ b=2",
    "a=1\\\n# no comment\nb=2": "a=1# no comment b=2",
    "# no continuation\\\na=1": "a=1",
    "a\\=b=1\nc\\:\\ d=2": "a=b=1 c: d=2",
    "a=\\u0031\\t\\q": "a=1\tq",
    "a": "a=",
    "a=\n=1": "a= =1",
    "a=1\rb=2\r\nc=3": "a=1 b=2 c=3",
    "a=1\\": "a=1",
    "a=1 \n": "a=1 ",
    "\\\n# a comment\n\\\n\na=1": "a=1",
    "\f a=1\\\r\n  2": "a=12",
}


@pytest.mark.parametrize("text", FORMAT)
def test_the_format_is_that_of_java_properties(text: str) -> None:
    assert " ".join(f"{key}={value}" for _, key, value in parse_properties(text)) == FORMAT[text]


def test_lines_are_numbered_as_an_editor_numbers_them() -> None:
    assert [(line, key) for line, key, _ in parse_properties("# x\r\n\r\na=1\\\r\n2\r\nb=3\rc=4")] == [
        (3, "a"),
        (5, "b"),
        (6, "c"),
    ]


def escaped(text: str) -> str:
    """Text as any writer of properties may have it: each special character behind a backslash."""
    named = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    return "".join(named.get(char, f"\\{char}" if char in "\\=: #!" else char) for char in text)


TEXT = st.text(st.sampled_from("ab1 =:#!\\\t\n\r\fu\u00e9\u20ac"), max_size=8)


@given(st.lists(st.tuples(TEXT, TEXT, st.sampled_from(["=", ":", " ", " = ", "\t:\f"])), max_size=5))
def test_what_was_escaped_is_read_back(pairs: list[tuple[str, str, str]]) -> None:
    text = "".join(f"{escaped(key)}{by}{escaped(value)}\n" for key, value, by in pairs if key)
    assert [(key, value) for _, key, value in parse_properties(text)] == [
        (key, value) for key, value, _ in pairs if key
    ]


@given(st.text(st.sampled_from("ab=: #!\\\t\n\r\f"), max_size=40))
def test_no_text_is_too_strange_to_be_read(text: str) -> None:
    for line, key, value in parse_properties(text):
        assert line >= 1
        assert not {"\r", "\n"} & {*key, *value}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
def test_both_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes("managedLedgerMaxEntriesPerLedger=7\nzoneé=1 # é\n".encode(encoding))
    assert TopicConfig.from_broker_conf(path).max_entries_per_ledger == 7
    assert BrokerConf.read(path).unknown == ("zoneé",)

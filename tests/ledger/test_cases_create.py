"""Reference cases 1-18: creating, opening, listing and deleting ledgers."""

from __future__ import annotations

import pytest

import bookstand
from bookstand import errors
from tests.kit import refused

CREATORS = ["create_ledger", "create_ledger_adv"]


@pytest.mark.parametrize("creator", CREATORS)
@pytest.mark.parametrize(("ensemble", "write_quorum"), [(1, 2), (2, 3), (-1, -2)])
def test_case_1_write_quorum_above_the_ensemble(store, creator, ensemble, write_quorum):
    with refused(-14) as caught:
        getattr(store, creator)(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=1)
    assert caught.type is errors.IncorrectParameterError
    assert list(store.list_ledgers()) == []


@pytest.mark.parametrize("creator", CREATORS)
@pytest.mark.parametrize("ensemble", [1, 3])
def test_case_2_ack_quorum_above_the_write_quorum(store, creator, ensemble):
    with refused(-14):
        getattr(store, creator)(ensemble=ensemble, write_quorum=1, ack_quorum=2)
    assert list(store.list_ledgers()) == []


@pytest.mark.parametrize("creator", CREATORS)
@pytest.mark.parametrize("ack_quorum", [0, -1])
@pytest.mark.parametrize(("ensemble", "write_quorum"), [(1, 1), (3, 2), (2, 0)])
def test_case_3_ack_quorum_of_nothing(store, creator, ensemble, write_quorum, ack_quorum):
    with refused(-14):
        getattr(store, creator)(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
    assert list(store.list_ledgers()) == []


@pytest.mark.parametrize("creator", CREATORS)
def test_case_4_ensemble_of_nothing(open_store, creator):
    for defaults in (bookstand.defaults, bookstand.bookkeeper_defaults):
        store = open_store(defaults=defaults)
        with refused(-14):
            getattr(store, creator)(ensemble=0, password=b"pw")
        assert list(store.list_ledgers()) == []


def test_case_4_more_bookies_than_there_are(open_store):
    store = open_store(bookies=3)
    with refused(-6):
        store.create_ledger(ensemble=4, write_quorum=2, ack_quorum=2)
    store.create_ledger(ensemble=3, write_quorum=3, ack_quorum=3)


@pytest.mark.parametrize("creator", CREATORS)
def test_case_5_no_password(open_store, creator):
    own = open_store()
    with refused(-14):
        getattr(own, creator)(password=None)
    original = open_store(defaults=bookstand.bookkeeper_defaults)
    with refused(-14):
        getattr(original, creator)(password=None)
    with refused(-14):
        getattr(original, creator)()
    assert list(own.list_ledgers()) == []


def test_case_5_bookkeepers_defaults(open_store):
    store = open_store(defaults=bookstand.bookkeeper_defaults)
    writer = store.create_ledger(password=b"pw")
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == (3, 2, 2)
    assert (metadata.state, metadata.digest_type.upper(), metadata.password) == ("OPEN", "CRC32", b"pw")
    assert [(first, len(bookies)) for first, bookies in metadata.ensembles] == [(0, 3)]
    assert len(set(metadata.ensembles[0][1])) == 3
    assert (metadata.version, metadata.last_entry_id, metadata.length) == (0, -1, 0)
    writer.append(b"a")
    store.open_ledger(writer.id, password=b"pw")
    assert writer.append(b"no recovery by default") == 1


@pytest.mark.parametrize("recovery", [True, False])
def test_case_5_open_without_a_password(store, recovery):
    writer = store.create_ledger(password=b"pw")
    with refused(-14):
        store.open_ledger(writer.id, recovery=recovery, password=None)
    with refused(-102):
        store.open_ledger(writer.id, recovery=recovery)
    assert writer.append(b"still mine") == 0


@pytest.mark.parametrize("creator", CREATORS)
@pytest.mark.parametrize("option", ["custom_metadata", "digest"])
def test_case_6_no_custom_metadata(store, creator, option):
    with refused(-14):
        getattr(store, creator)(**{option: None})
    assert list(store.list_ledgers()) == []


@pytest.mark.parametrize("ledger_id", [-1, -5, -(2**63)])
def test_case_7_adv_id_below_zero(store, ledger_id):
    with refused(-14):
        store.create_ledger_adv(ledger_id)
    assert list(store.list_ledgers()) == []


def test_case_7_adv_id_zero_is_an_id(store):
    assert store.create_ledger_adv(0).id == 0
    assert list(store.list_ledgers()) == [0]


@pytest.mark.parametrize("recovery", [True, False])
@pytest.mark.parametrize("ledger_id", [None, -1, 900])
def test_case_8_open_without_an_id(store, ledger_id, recovery):
    with refused(-25) as caught:
        store.open_ledger(ledger_id, recovery=recovery)
    assert caught.type is errors.NoSuchLedgerError


@pytest.mark.parametrize("ledger_id", [-1, 900])
def test_case_8_nothing_known_of_a_missing_ledger(store, ledger_id):
    with refused(-25):
        store.ledger_metadata(ledger_id)
    with refused(-25):
        store.is_closed(ledger_id)


@pytest.mark.parametrize("missing_ok", [True, False])
@pytest.mark.parametrize("ledger_id", [None, -1])
def test_case_9_delete_without_an_id(store, ledger_id, missing_ok):
    with refused(-14):
        store.delete_ledger(ledger_id, missing_ok=missing_ok)


def test_case_10_closed_client(open_store):
    other = open_store()
    store = open_store()
    ledger_id = other.create_ledger().id
    store.close()
    calls = [
        lambda: store.create_ledger(),
        lambda: store.create_ledger_adv(),
        lambda: store.open_ledger(ledger_id),
        lambda: store.open_ledger(ledger_id, recovery=False),
        lambda: store.delete_ledger(ledger_id),
        lambda: store.delete_ledger(ledger_id, missing_ok=True),
        lambda: list(store.list_ledgers()),
        lambda: store.ledger_metadata(ledger_id),
        lambda: store.is_closed(ledger_id),
    ]
    for call in calls:
        with refused(-19) as caught:
            call()
        assert caught.type is errors.ClientClosedError
    store.close()
    assert list(other.list_ledgers()) == [ledger_id]
    assert other.ledger_metadata(ledger_id).state == "OPEN"


@pytest.mark.parametrize("password", [b"pw", b""])
def test_case_11_wrong_password(open_store, password):
    store, other = open_store(), open_store()
    writer = store.create_ledger(password=password)
    assert writer.append(b"a") == 0
    for recovery in (True, False):
        for wrong in (b"no", b"pwx", b"PW", b"pw\0"):
            with refused(-102) as caught:
                other.open_ledger(writer.id, recovery=recovery, password=wrong)
            assert caught.type is errors.UnauthorizedAccessError
    assert writer.append(b"b") == 1
    assert store.ledger_metadata(writer.id).state == "OPEN"
    writer.close()
    for recovery in (True, False):
        with refused(-102):
            other.open_ledger(writer.id, recovery=recovery, password=b"no")
        assert other.open_ledger(writer.id, recovery=recovery, password=password).last_add_confirmed == 1


def test_case_11_a_password_may_be_text(store):
    writer = store.create_ledger(password="héslo")
    assert store.open_ledger(writer.id, password="héslo".encode()).last_add_confirmed == -1


@pytest.mark.parametrize("written", ["crc32", "crc32c", "hmac", "dummy"])
@pytest.mark.parametrize("recovery", [True, False])
def test_case_12_digest_of_another_type_is_ignored_with_autodetection(open_store, written, recovery):
    store, other = open_store(), open_store()
    writer = store.create_ledger(digest=written, password=b"pw")
    writer.append(b"a")
    writer.append(b"b")
    for asked in ("crc32", "crc32c", "hmac", "mac", "dummy", "DUMMY", None):
        reader = other.open_ledger(writer.id, recovery=recovery, password=b"pw", digest=asked)
        assert [entry.data for entry in reader.read(0, 0)] == [b"a"]


@pytest.mark.parametrize("recovery", [True, False])
def test_case_12_digest_of_another_type_without_autodetection(open_store, recovery):
    store, strict = open_store(), open_store(digest_autodetect=False)
    writer = store.create_ledger(digest="crc32", password=b"pw")
    writer.append(b"a")
    for asked in ("hmac", "crc32c", "dummy"):
        with refused(-5) as caught:
            strict.open_ledger(writer.id, recovery=recovery, password=b"pw", digest=asked)
        assert caught.type is errors.DigestMismatchError
    assert writer.append(b"not fenced by a refused open") == 1
    reader = strict.open_ledger(writer.id, recovery=recovery, password=b"pw", digest="CRC32")
    assert [entry.data for entry in reader.read(0, 0)] == [b"a"]


@pytest.mark.parametrize("recovery", [True, False])
@pytest.mark.parametrize("autodetect", [True, False])
def test_case_13_password_and_digest_both_wrong(open_store, recovery, autodetect):
    store, other = open_store(), open_store(digest_autodetect=autodetect)
    writer = store.create_ledger(digest="crc32", password=b"pw")
    with refused(-102):
        other.open_ledger(writer.id, recovery=recovery, password=b"no", digest="hmac")


CUSTOM = {"app": b"\x01\x02\x03", "k2": b"", "key with space": b"\xff\xfe\xfd", "é": "é".encode(), "": b"no name"}


@pytest.mark.parametrize("creator", CREATORS)
@pytest.mark.parametrize("metadata_format", [2, 3])
def test_case_14_custom_metadata_survives_reopen(open_store, creator, metadata_format):
    store = open_store(metadata_format=metadata_format)
    writer = getattr(store, creator)(custom_metadata=CUSTOM)
    assert dict(writer.metadata.custom_metadata) == CUSTOM
    assert dict(open_store().open_ledger(writer.id, recovery=False).metadata.custom_metadata) == CUSTOM
    writer.close()
    ledger_id = writer.id
    store.close()
    again = open_store()
    assert dict(again.ledger_metadata(ledger_id).custom_metadata) == CUSTOM
    assert dict(again.open_ledger(ledger_id).metadata.custom_metadata) == CUSTOM


def test_case_14_the_callers_dict_is_not_kept(store):
    mine = {"a": b"1"}
    writer = store.create_ledger(custom_metadata=mine)
    mine["b"] = b"2"
    assert dict(store.ledger_metadata(writer.id).custom_metadata) == {"a": b"1"}
    assert dict(writer.metadata.custom_metadata) == {"a": b"1"}


def test_case_15_deleted_ledgers_cannot_be_opened(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    writer.close()
    reader = other.open_ledger(writer.id)
    store.delete_ledger(writer.id)
    for recovery in (True, False):
        with refused(-25):
            other.open_ledger(writer.id, recovery=recovery)
    with refused(-25):
        other.ledger_metadata(writer.id)
    with refused(-25):
        other.is_closed(writer.id)
    with refused(-25):
        store.delete_ledger(writer.id)
    store.delete_ledger(writer.id, missing_ok=True)
    assert list(store.list_ledgers()) == []
    assert [entry.data for entry in reader.read(0, 1)] == [b"a", b"b"]
    assert reader.read_last_confirmed() == 1
    assert reader.read_last_entry().data == b"b"


def test_case_15_deleting_under_a_writer(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    reader = other.open_ledger(writer.id, recovery=False)
    other.delete_ledger(writer.id)
    assert writer.append(b"c") == 2
    assert [entry.data for entry in reader.read_unconfirmed(0, 2)] == [b"a", b"b", b"c"]
    assert reader.read_last_confirmed() == 1
    for _ in range(2):
        with refused(-25):
            writer.close()
    with refused(-11):
        writer.append(b"d")
    assert [entry.data for entry in writer.read(0, 2)] == [b"a", b"b", b"c"]
    assert list(store.list_ledgers()) == []


def test_case_15_ids_are_not_given_twice(open_store):
    store = open_store()
    first = store.create_ledger().id
    last = store.create_ledger().id
    store.delete_ledger(last)
    store.close()
    again = open_store()
    assert again.create_ledger().id > last > first >= 0


def test_case_16_one_adv_id_many_times(open_store):
    store, other = open_store(), open_store()
    for generation in range(6):
        writer = store.create_ledger_adv(77)
        assert (writer.id, writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (77, -1, -1, 0)
        with refused(-20) as caught:
            other.create_ledger_adv(77)
        assert caught.type is errors.LedgerExistsError
        payload = b"generation %d" % generation
        assert writer.write(0, payload) == 0
        if generation % 2:
            writer.close()
            with refused(-20):
                store.create_ledger_adv(77)
        reader = other.open_ledger(77)
        assert (reader.last_add_confirmed, reader.length) == (0, len(payload))
        assert [entry.data for entry in reader.read(0, 0)] == [payload]
        store.delete_ledger(77)
        with refused(-25):
            store.open_ledger(77)
    assert list(store.list_ledgers()) == []


@pytest.mark.parametrize("wire_name", ["v3", "v2"])
def test_case_16_nothing_is_left_of_the_former_ledger(open_store, wire_name):
    store = open_store(wire=wire_name)
    first = store.create_ledger_adv(5, digest="crc32c", password=b"one")
    for entry_id, payload in enumerate((b"one", b"uno", b"eins")):
        first.write(entry_id, payload)
    store.open_ledger(5, password=b"one")
    store.delete_ledger(5)
    second = store.create_ledger_adv(5, digest="crc32", password=b"two")
    assert second.last_add_confirmed == -1
    with refused(-7, -13):
        second.read_unconfirmed(0, 0)
    assert second.read_last_confirmed() == -1
    assert second.write(0, b"two") == 0
    with refused(-101):
        first.write(3, b"of the former generation")
    assert second.write(1, b"deux") == 1
    with refused(-102):
        store.open_ledger(5, password=b"one")
    reader = store.open_ledger(5, password=b"two")
    assert (reader.last_add_confirmed, reader.length) == (1, 7)
    assert [entry.data for entry in reader.read(0, 1)] == [b"two", b"deux"]
    with refused(-13):
        reader.read_unconfirmed(2, 2)


@pytest.mark.parametrize("acknowledged", [0, 2])
def test_case_16_the_former_writer_cannot_close_the_new_ledger(open_store, acknowledged):
    store, other = open_store(), open_store()
    former = store.create_ledger_adv(5, password=b"one", digest="crc32")
    for i in range(acknowledged):
        former.write(i, b"former")
    other.delete_ledger(5)
    second = other.create_ledger_adv(5, password=b"two", digest="hmac")
    second.write(0, b"two")
    with refused(-25, -17):
        former.close()
    metadata = other.ledger_metadata(5)
    assert (metadata.state, metadata.password, metadata.digest_type.upper()) == ("OPEN", b"two", "HMAC")
    assert second.write(1, b"deux") == 1
    second.close()
    assert [entry.data for entry in other.open_ledger(5, password=b"two")] == [b"two", b"deux"]


def test_case_16_ids_of_every_size(open_store):
    store, other = open_store(), open_store()
    ids = [0, 10**9, 2**31 - 2, 2**31 - 1, 2**31, 2**32, 10**12 - 1, 2**62, 2**63 - 1]
    for ledger_id in reversed(ids):
        writer = store.create_ledger_adv(ledger_id)
        assert writer.write(0, b"x") == 0
        writer.close()
        reader = other.open_ledger(ledger_id)
        assert (reader.id, reader.last_add_confirmed, reader.length) == (ledger_id, 0, 1)
        assert [entry.data for entry in reader.read(0, 0)] == [b"x"]
    assert list(store.list_ledgers()) == ids
    for ledger_id in ids:
        store.delete_ledger(ledger_id)
    assert list(store.list_ledgers()) == []


def test_case_16_a_generated_id_avoids_chosen_ones(open_store):
    store = open_store()
    probe = store.create_ledger().id
    chosen = {store.create_ledger_adv(probe + offset).id for offset in (1, 2, 4)}
    generated = {store.create_ledger_adv().id, store.create_ledger().id, store.create_ledger().id}
    assert len(generated) == 3
    assert not generated & chosen
    assert sorted(generated | chosen | {probe}) == list(store.list_ledgers())


def test_case_17_list(open_store):
    store, other = open_store(), open_store()
    assert list(store.list_ledgers()) == []
    ids = [store.create_ledger().id for _ in range(10)]
    assert ids == sorted(set(ids))
    assert list(store.list_ledgers()) == ids
    assert list(other.list_ledgers()) == ids
    store.delete_ledger(ids[3])
    assert list(other.list_ledgers()) == ids[:3] + ids[4:]
    store.close()
    assert list(open_store().list_ledgers()) == ids[:3] + ids[4:]


def test_case_18_is_closed(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    assert other.is_closed(writer.id) is False
    writer.append(b"a")
    assert other.is_closed(writer.id) is False
    assert writer.is_closed() is False
    writer.close()
    assert other.is_closed(writer.id) is True
    assert writer.is_closed() is True


def test_case_18_recovery_closes_too(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    assert other.open_ledger(writer.id).is_closed() is True
    assert other.is_closed(writer.id) is True
    assert writer.is_closed() is False

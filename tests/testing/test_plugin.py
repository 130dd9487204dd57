"""The pytest plugin as its users have it: a run of pytest of its own for each case."""

from __future__ import annotations

import re

import pytest

pytest_plugins = ["pytester"]

# As our own tests: no warning is let pass.
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:timeout", "-W", "error", "-rA")


@pytest.fixture(autouse=True)
def no_faults_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKSTAND_FAULTS", raising=False)


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=source)
    return pytester.runpytest_subprocess(*OPTIONS, *options, timeout=120)


def output(result: pytest.RunResult) -> str:
    return result.stdout.str()


# -- what works ------------------------------------------------------------------------------------------------------


def test_the_store_is_served(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest, sys
        from kazoo.client import KazooClient

        def test_no_server_is_loaded_for_those_who_have_none(bookstand_store):
            assert "bookstand.server.server" not in sys.modules

        @pytest.mark.bookstand_serve(bookies=2)
        def test_server(bookstand_server, bookstand_store):
            client = KazooClient(hosts=bookstand_server.zookeeper)
            client.start(timeout=60)
            client.create("/a", b"x")
            assert bookstand_store.nodes.get("/a") == (b"x", 0)
            assert sorted(client.get_children("/ledgers/available")) == sorted([*bookstand_server.bookies, "readonly"])
            assert len(bookstand_server.bookies) == 2
            client.stop()
            client.close()

        def test_faults(bookstand_faults, bookstand_server):
            bookstand_faults.fail("nodes.put", -6, path="/a")
            client = KazooClient(hosts=bookstand_server.zookeeper)
            client.start(timeout=60)
            with pytest.raises(Exception):
                client.create("/a", b"x")
            client.stop()
            client.close()
        """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=3)


def test_a_store_is_there_and_is_closed_afterwards(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import bookstand, pytest

        kept = []

        def test_store(bookstand_store):
            kept.append(bookstand_store)
            assert bookstand_store.create_ledger().append(b"a") == 0

        def test_it_was_closed():
            with pytest.raises(bookstand.errors.ClientClosedError):
                list(kept[0].list_ledgers())

        def test_each_test_has_its_own(bookstand_store):
            assert list(bookstand_store.list_ledgers()) == []
            bookstand_store.close()

        @pytest.mark.bookstand(wire="v2", max_entry_bytes=100)
        def test_options(bookstand_store):
            with pytest.raises(bookstand.errors.EntryTooLargeError):
                bookstand_store.create_ledger().append(bytes(100))
        """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=4)


def test_further_stores_and_the_same_one_again(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_stores(bookstand_store, bookstand_open_store, tmp_path):
            ledger = bookstand_store.create_ledger().id
            again = bookstand_open_store()
            assert list(again.list_ledgers()) == [ledger]
            other = bookstand_open_store(tmp_path / "other", witness=True)
            assert list(other.list_ledgers()) == []
        """,
    )
    result.assert_outcomes(passed=1)


def test_faults_happen_in_the_test_s_store_and_not_in_its_end(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import bookstand, pytest
        from bookstand.testing import SimulatedCrash

        def test_failing(bookstand_faults, bookstand_store):
            bookstand_faults.fail("append", nth=2)
            writer = bookstand_store.create_ledger()
            writer.append(b"a")
            with pytest.raises(bookstand.errors.NotEnoughBookiesError):
                writer.append(b"b")

        def test_crash_and_reopen(bookstand_store, bookstand_open_store, bookstand_faults):
            writer = bookstand_store.create_ledger()
            writer.append(b"kept")
            bookstand_faults.crash("append.stored")
            with pytest.raises(SimulatedCrash):
                writer.append(b"on the disk")
            reader = bookstand_open_store().open_ledger(writer.id)
            assert [entry.data for entry in reader] == [b"kept", b"on the disk"]

        def test_delays_cost_nothing(bookstand_faults, bookstand_store):
            before = bookstand_faults.clock.now()
            bookstand_faults.delay("append", 3600)
            bookstand_store.create_ledger().append(b"a")
            assert bookstand_faults.clock.now() - before == 3600_000

        def test_one_left_stalled(bookstand_faults, bookstand_store):
            stall = bookstand_faults.stall("append")
            bookstand_store.create_ledger().append_async(b"a")
            assert stall.reached(60)
        """,
    )
    result.assert_outcomes(passed=4)


def test_the_crash_lab(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import bookstand

        def workload(path, acknowledge):
            with bookstand.open(path) as store:
                writer = store.create_ledger()
                acknowledge((writer.id, writer.append(b"a")))

        def check(store, acknowledged):
            for ledger_id, entry_id in acknowledged:
                reader = store.open_ledger(ledger_id)
                assert reader.read(entry_id, entry_id)[0].data == b"a"

        def test_lab(bookstand_crash_lab):
            recording = bookstand_crash_lab.record(workload)
            assert bookstand_crash_lab.explore(recording, check, limit=50).states == 50
        """,
    )
    result.assert_outcomes(passed=1)


# -- what fails ------------------------------------------------------------------------------------------------------

DAMAGE = """
        import bookstand, pytest
        from pathlib import Path

        def spoil(store):
            writer = store.create_ledger()
            writer.append(b"here it is")
            store.close()
            file = Path(store.path, "data.mdb")
            data = file.read_bytes()
            assert b"here it is" in data
            file.write_bytes(data.replace(b"here it is", b"here it wa"))
"""


def test_a_store_left_damaged_fails_the_test_that_left_it(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        DAMAGE
        + """
        def test_good(bookstand_store):
            bookstand_store.create_ledger()

        def test_bad(bookstand_store):
            spoil(bookstand_store)

        def test_other(bookstand_open_store, tmp_path):
            spoil(bookstand_open_store(tmp_path / "other"))

        @pytest.mark.bookstand_damaged
        def test_on_purpose(bookstand_store):
            spoil(bookstand_store)
        """,
    )
    result.assert_outcomes(passed=4, errors=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = output(result)
    assert "ERROR test_it.py::test_bad - Failed: the test left a damaged store:" in text
    assert "ERROR test_it.py::test_other - Failed: the test left a damaged store:" in text
    assert re.search(r"^\S*/test_other0/other: .*digest", text, re.MULTILINE)


def test_a_store_that_cannot_be_opened_again_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from pathlib import Path

        def test_bad(bookstand_store):
            bookstand_store.close()
            Path(bookstand_store.path, "data.mdb").write_bytes(b"nothing of ours" * 1000)
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    assert "the test left a damaged store:" in output(result)


def test_a_rule_that_never_fired_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        def test_too_few(bookstand_faults, bookstand_store):
            bookstand_faults.fail("append", nth=5)
            bookstand_store.create_ledger().append(b"a")

        def test_only_the_end_would_have_met_it(bookstand_faults, bookstand_store):
            bookstand_faults.crash("commit.before_sync", nth=2)
            bookstand_store.create_ledger()

        def test_failed_anyway(bookstand_faults, bookstand_store):
            bookstand_faults.fail("append", nth=5)
            raise AssertionError("something else")

        def test_skipped(bookstand_faults):
            bookstand_faults.fail("append")
            pytest.skip("not today")
        """,
    )
    result.assert_outcomes(passed=2, errors=2, failed=1, skipped=1)
    text = output(result)
    assert "ERROR at teardown of test_too_few" in text
    assert "ERROR at teardown of test_only_the_end_would_have_met_it" in text
    assert re.search(r"^never happened: fail@append#5.*BOOKSTAND_FAULTS", text, re.MULTILINE)
    assert re.search(r"^never happened: crash@commit.before_sync#2", text, re.MULTILINE)
    assert "During handling" not in text


FAILING = """
        def test_fails(bookstand_faults, bookstand_store, bookstand_seed):
            bookstand_faults.fail("append", probability=0.5, times=None)
            writer = bookstand_store.create_ledger()
            print("seed", bookstand_seed, bookstand_faults.seed)
            for number in range(200):
                writer.append(b"a")
        """


def test_a_failure_says_how_to_see_it_again(pytester: pytest.Pytester) -> None:
    result = run(pytester, FAILING)
    result.assert_outcomes(failed=1)
    text = output(result)
    header = re.search(r"^bookstand: --bookstand-seed=(\d+)$", text, re.MULTILINE)
    assert header is not None
    again = re.search(r"^python -m pytest 'test_it.py::test_fails' --bookstand-seed=(\d+)$", text, re.MULTILINE)
    assert again is not None
    assert again[1] == header[1]
    line = re.search(r'^BOOKSTAND_FAULTS="(v1:seed=(\d+);fail@append.*)"$', text, re.MULTILINE)
    assert line is not None
    seed = re.search(r"^seed (\d+) (\d+)$", text, re.MULTILINE)
    assert seed is not None
    assert seed[1] == seed[2] == line[2]

    repeated = run(pytester, FAILING, f"--bookstand-seed={again[1]}")
    assert line[0] in output(repeated)
    assert seed[0] in output(repeated)


def test_the_line_of_faults_alone_repeats_them_once(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        import bookstand, pytest

        def test_made_by_the_test_as_well(bookstand_faults, bookstand_store):
            bookstand_faults.fail("append", nth=2)
            assert bookstand_faults.seed == 77
            assert len(bookstand_faults.rules) == 1
            writer = bookstand_store.create_ledger()
            writer.append(b"a")
            with pytest.raises(bookstand.errors.NotEnoughBookiesError):
                writer.append(b"b")

        def test_from_the_line_alone(bookstand_faults, bookstand_store):
            writer = bookstand_store.create_ledger()
            writer.append(b"a")
            with pytest.raises(bookstand.errors.NotEnoughBookiesError):
                writer.append(b"b")
        """
    monkeypatch.setenv("BOOKSTAND_FAULTS", "v1:seed=77;fail@append#2=-6")
    run(pytester, source).assert_outcomes(passed=2)


def test_seeds_differ_by_test_and_are_the_same_in_another_company(pytester: pytest.Pytester) -> None:
    source = """
        def test_one(bookstand_seed):
            print("one", bookstand_seed)

        def test_two(bookstand_seed, bookstand_crash_lab):
            print("two", bookstand_seed, bookstand_crash_lab.seed)
        """
    both = output(run(pytester, source, "--bookstand-seed=5"))
    two = re.search(r"two (\d+) (\d+)", both)
    one = re.search(r"one (\d+)", both)
    assert one is not None
    assert two is not None
    assert one[1] != two[1] == two[2]
    assert two[0] in output(run(pytester, source, "--bookstand-seed=5", "-k", "two"))
    assert two[0] not in output(run(pytester, source, "--bookstand-seed=6", "-k", "two"))


def test_a_test_without_these_fixtures_is_left_alone(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_fails():\n    raise AssertionError")
    result.assert_outcomes(failed=1)
    assert "to see it again" not in output(result)


def test_the_fixtures_are_listed_with_what_they_are(pytester: pytest.Pytester) -> None:
    listed = output(pytester.runpytest_subprocess("--fixtures", "-p", "no:cacheprovider"))
    for name in ("store", "open_store", "faults", "crash_lab", "seed"):
        assert re.search(rf"^bookstand_{name} -- .*pytest_plugin.py:\d+\n    \S+", listed, re.MULTILINE), name

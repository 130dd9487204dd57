"""Pytest plugin: stores that are verified after the test, faults that must fire, and a crash lab.

Function-scoped fixtures:

``bookstand_store``
    Open store in the test's temporary directory, with the test's faults if it requests them. The marker
    ``@pytest.mark.bookstand(wire="v2", ...)`` sets the options of ``bookstand.open``.
``bookstand_open_store``
    Function that opens further stores, or the same one again: ``bookstand_open_store(path=None, **options)``.
``bookstand_faults``
    :class:`bookstand.testing.Faults` for the stores that the other fixtures open.
``bookstand_crash_lab``
    :class:`bookstand.testing.CrashLab` with the test's seed.
``bookstand_seed``
    The test's seed, derived from ``--bookstand-seed`` and the test's id. The other fixtures use it.

After the test, every opened store is closed, reopened and verified. The test fails if a store is damaged, unless it is
marked with ``@pytest.mark.bookstand_damaged``. It also fails if a fault rule never fired.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import bookstand
from bookstand.errors import BookstandError

if TYPE_CHECKING:
    from bookstand.testing import CrashLab, Faults

# Their assertions get pytest's detailed messages.
pytest.register_assert_rewrite(
    "bookstand.testing.assertions", "bookstand.testing.machine", "bookstand.testing.workloads"
)


class Trial:
    """Resources that the fixtures gave a test, and its outcome."""

    def __init__(self) -> None:
        self.faults: Faults | None = None
        self.opened: list[bookstand.Store] = []
        self.passed = False

    def close(self) -> None:
        """Close the open stores. Faults are disabled first: they must not affect the verification."""
        if self.faults is not None:
            self.faults.release()
        for store in self.opened:
            store.storage.hooks = None
        for store in reversed(self.opened):
            store.close()

    def damage(self) -> list[str]:
        """Return the damage of the stores, after they were closed."""
        found = []
        for path in dict.fromkeys(store.path for store in self.opened):
            try:
                with bookstand.open(path, create=False) as store:
                    found += [f"{path}: {problem.message}" for problem in store.verify().problems]
            except BookstandError as error:
                found.append(f"{path}: {type(error).__name__}: {error}")
        return found


_TRIAL = pytest.StashKey[Trial]()


def _trial(item: Any) -> Trial:
    trial: Trial = item.stash.setdefault(_TRIAL, Trial())
    return trial


# -- the run ---------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("bookstand").addoption(
        "--bookstand-seed",
        type=int,
        metavar="N",
        help="what every test's faults and crash states are derived from, together with the test's id (default: "
        "another one in every run, shown in the header and with every failure)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "bookstand(**options): the options of bookstand.open for bookstand_store")
    config.addinivalue_line(
        "markers", "bookstand_damaged: the test may leave its stores damaged; they are not verified"
    )
    if config.option.bookstand_seed is None:
        # Stored in the option, so that workers of a distributed run inherit it.
        config.option.bookstand_seed = random.SystemRandom().randrange(1 << 32)


def pytest_report_header(config: pytest.Config) -> str:
    return f"bookstand: --bookstand-seed={config.option.bookstand_seed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    trial = item.stash.get(_TRIAL, None)
    if trial is None:
        return report
    if report.when == "call":
        trial.passed = report.passed
    if report.failed:
        lines = [f"python -m pytest '{item.nodeid}' --bookstand-seed={item.config.option.bookstand_seed}"]
        if trial.faults is not None:
            lines.append(trial.faults.replay_line)
        report.sections.append(("bookstand: to see it again", "\n".join(lines)))
    return report


# -- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bookstand_seed(request: pytest.FixtureRequest) -> int:
    """Seed of the test, which does not depend on other tests or their order."""
    _trial(request.node)
    text = f"{request.config.option.bookstand_seed} {request.node.nodeid}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@pytest.fixture
def bookstand_faults(request: pytest.FixtureRequest, bookstand_seed: int) -> Iterator[Faults]:
    """Faults for the test's stores; each rule must fire.

    Delays take no real time: they advance the clock that the stores are opened with. If BOOKSTAND_FAULTS is set, its
    seed is used, and its rules apply in addition to those of the test.
    """
    from bookstand.testing.faults.faults import UnfiredFaultsError
    from bookstand.testing.faults.replay import faults_of_a_test

    trial = _trial(request.node)
    faults = trial.faults = faults_of_a_test(bookstand_seed)
    yield faults
    unfired = ""
    try:
        faults.check()
    except UnfiredFaultsError as error:
        unfired = str(error)
    if unfired and trial.passed:
        pytest.fail(unfired, pytrace=False)


@pytest.fixture
def bookstand_open_store(
    request: pytest.FixtureRequest, tmp_path: Path, bookstand_seed: int
) -> Iterator[Callable[..., bookstand.Store]]:
    """``open(path=None, **options)`` like ``bookstand.open``; the default path is that of ``bookstand_store``."""
    trial = _trial(request.node)
    # Requested first, so that the faults are torn down after the stores that use them.
    faults = request.getfixturevalue("bookstand_faults") if "bookstand_faults" in request.fixturenames else None

    def open_store(path: Path | str | None = None, **options: Any) -> bookstand.Store:
        if faults is not None:
            options = {"hooks": faults, "clock": faults.clock} | options
        store = bookstand.open(tmp_path / "bookstand-store" if path is None else path, **options)
        trial.opened.append(store)
        return store

    yield open_store
    trial.close()
    if request.node.get_closest_marker("bookstand_damaged") is None:
        damage = trial.damage()
        if damage:
            pytest.fail("the test left a damaged store:\n" + "\n".join(damage), pytrace=False)


@pytest.fixture
def bookstand_store(
    request: pytest.FixtureRequest, bookstand_open_store: Callable[..., bookstand.Store]
) -> bookstand.Store:
    """Open store of the test, which is closed and verified afterwards."""
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("bookstand"))):
        options |= marker.kwargs
    return bookstand_open_store(**options)


@pytest.fixture
def bookstand_crash_lab(bookstand_seed: int) -> Iterator[CrashLab]:
    """Crash lab with the test's seed."""
    from bookstand.testing import CrashLab

    with CrashLab(seed=bookstand_seed) as lab:
        yield lab

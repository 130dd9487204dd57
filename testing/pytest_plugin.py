"""The pytest plugin: stores that are verified after the test, faults that must have happened, a crash lab.

Fixtures, all for one test:

``bookstand_store``
    an open store in the test's temporary folder, with the test's faults where it asks for them. The marker
    ``@pytest.mark.bookstand(wire="v2", ...)`` has the options to open it with.
``bookstand_open_store``
    opens further stores, or the same one again: ``bookstand_open_store(path=None, **options)``.
``bookstand_faults``
    :class:`bookstand.testing.Faults`; ``bookstand_store`` and ``bookstand_open_store`` open with it.
``bookstand_crash_lab``
    :class:`bookstand.testing.CrashLab` with the test's seed.
``bookstand_seed``
    the test's own seed, made of ``--bookstand-seed`` and the test's id; the fixtures above use it.

After the test every store that was opened is closed, opened again and verified. A test that left one damaged fails,
unless it is marked with ``@pytest.mark.bookstand_damaged``; so does one with a fault rule that never fired.
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

# Their assertions are to explain themselves.
pytest.register_assert_rewrite(
    "bookstand.testing.assertions", "bookstand.testing.machine", "bookstand.testing.workloads"
)


class Trial:
    """What the fixtures gave one test, and how the test went."""

    def __init__(self) -> None:
        self.faults: Faults | None = None
        self.opened: list[bookstand.Store] = []
        self.passed = False

    def close(self) -> None:
        """Close what is still open. Faults are for the test, not for what comes after it."""
        if self.faults is not None:
            self.faults.release()
        for store in self.opened:
            store.storage.hooks = None
        for store in reversed(self.opened):
            store.close()

    def damage(self) -> list[str]:
        """What is wrong with the stores, once they are closed."""
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
        # Kept in the option, so that workers of a distributed run get the same one.
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
    """The test's own seed: the same whichever tests run besides it, and in whatever order."""
    _trial(request.node)
    text = f"{request.config.option.bookstand_seed} {request.node.nodeid}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@pytest.fixture
def bookstand_faults(request: pytest.FixtureRequest, bookstand_seed: int) -> Iterator[Faults]:
    """Faults for the test's stores; each rule has to come to something.

    Delays cost no time, they move the clock that the stores are opened with. Where BOOKSTAND_FAULTS is set its seed is
    used, and its rules hold besides those that the test makes.
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
    """``open(path=None, **options)`` as ``bookstand.open``; without a path it is the store of ``bookstand_store``."""
    trial = _trial(request.node)
    # Before the stores: what they are opened with must outlive them.
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
    """An open store of the test's own, closed and verified after it."""
    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("bookstand"))):
        options |= marker.kwargs
    return bookstand_open_store(**options)


@pytest.fixture
def bookstand_crash_lab(bookstand_seed: int) -> Iterator[CrashLab]:
    """A crash lab with the test's seed."""
    from bookstand.testing import CrashLab

    with CrashLab(seed=bookstand_seed) as lab:
        yield lab

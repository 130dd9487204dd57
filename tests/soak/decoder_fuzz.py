"""Coverage-guided inputs for every decoder and every protocol state machine, with a bound on memory and on time.

The decoders are those of ``decoder_mutations`` without the ones that open a whole store for each case, plus the ones of
``expanding_decoders``. An input is two octets that select a decoder, and the octets that it decodes. A child runs the
cases: with `atheris <https://github.com/google/atheris>`_, if it can be imported, libFuzzer selects the inputs by the
code that they reach; without it the mutations of ``decoder_mutations`` change the samples and the corpus. The child has
a limit of address space, and a case has one of processor time and one of memory.

A case is one input. Rounds of one campaign share a corpus, in ``build/fuzz`` or the folder in the environment variable
``BOOKSTAND_FUZZ_CORPUS``.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit import own_environment
from tests.soak.kinds import Done, Kind

GUIDED, PLAIN = "guided", "plain"
CASES = 40_000
"""Of a round."""
MEMORY = 1 << 30
"""Address space of the child above what it begins with."""
CASE_MEMORY = 128 << 20
"""Growth of the child's peak memory that one case may cause."""
LARGEST = 1 << 16
CORPUS = Path(os.environ.get("BOOKSTAND_FUZZ_CORPUS", "build/fuzz"))
WHOLE_STORES = 0.07
"""Decoders with a smaller share of the mutations open a store for each case."""
_SELECTOR = struct.Struct(">H")
_SHOWN = 20
_KEPT = 4_000


class Ran(NamedTuple):
    cases: int
    cpu_seconds: float
    problems: list[str]


class Cases:
    """Runs inputs, and notes each kind of problem once."""

    def __init__(self, folder: Path, found: Path, problems: Path) -> None:
        from tests.soak import decoder_mutations, expanding_decoders

        table = decoder_mutations.decoders(1, folder) | expanding_decoders.all_of_them(random.Random(1), folder)
        # A guided engine finds bytes that a checksum fits.
        self.table = {
            name: one._replace(digested=False) for name, one in sorted(table.items()) if one.share > WHOLE_STORES
        }
        self.names = list(self.table)
        self.count = 0
        self._judge = decoder_mutations.judge
        self._peak = 0
        self._known: set[tuple[str, str]] = set()
        self._found = found
        self._problems = problems

    def samples(self) -> Iterator[bytes]:
        for number, name in enumerate(self.names):
            for sample in self.table[name].samples:
                yield _SELECTOR.pack(number) + sample

    def run(self, data: bytes) -> None:
        if len(data) < _SELECTOR.size:
            return
        self.count += 1
        name = self.names[_SELECTOR.unpack_from(data)[0] % len(self.names)]
        decoder, octets = self.table[name], data[_SELECTOR.size :]
        before = _peak_memory()
        problem, _ = self._judge(decoder, octets, octets not in decoder.samples)
        grown = _peak_memory() - max(before, self._peak)
        self._peak = max(before, self._peak) + max(grown, 0)
        if problem is None and grown > CASE_MEMORY:
            problem = f"it took {grown >> 20} MiB"
        if problem is not None:
            self._note(name, problem, octets)

    def _note(self, name: str, problem: str, octets: bytes) -> None:
        kind = name, "".join(one for one in problem[:60] if not one.isdigit())
        if kind in self._known or len(self._known) >= _SHOWN:
            return
        self._known.add(kind)
        self._found.mkdir(parents=True, exist_ok=True)
        (self._found / sha1(octets).hexdigest()).write_bytes(octets)
        with self._problems.open("a") as file:
            file.write(json.dumps(f"{name}: {problem}: {octets[:400]!r}") + "\n")


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# -- the child ---------------------------------------------------------------------------------------------------------


def main(engine: str, seed: int, cases: int, corpus: Path, report: Path) -> None:
    if engine not in (GUIDED, PLAIN):
        raise ValueError(f"there is no engine {engine!r}, but {GUIDED} and {PLAIN}")
    guided = engine == GUIDED
    if guided:
        import atheris

        # Only what is imported from here on is measured.
        instrumented: Any = atheris.instrument_imports(include=["bookstand"])
    else:
        instrumented = nullcontext()
    with instrumented:
        from tests.soak import decoder_mutations
    logging.disable(logging.CRITICAL)
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="bookstand-fuzz-", dir=place) as folder:
        with instrumented:
            prepared = Cases(Path(folder), corpus.parent / "found", report.with_name("problems"))
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY + (1 << 30),) * 2)
        signal.signal(signal.SIGPROF, decoder_mutations._too_long)
        corpus.mkdir(parents=True, exist_ok=True)
        for sample in prepared.samples():
            (corpus / sha1(sample).hexdigest()).write_bytes(sample)

        def tell() -> None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            report.write_text(json.dumps([prepared.count, used.ru_utime + used.ru_stime]))

        if guided:
            # libFuzzer ends the process itself, without Python's way out.
            _fuzz(prepared, seed, cases, corpus, tell)
        else:
            _mutate(prepared, seed, cases, corpus)
            tell()


def _fuzz(prepared: Cases, seed: int, cases: int, corpus: Path, tell: Callable[[], None]) -> None:
    import atheris

    from tests.soak.decoder_mutations import MUTATIONS

    # libFuzzer reads the corpus before it counts.
    cases += len(list(corpus.iterdir()))

    def one(data: bytes) -> None:
        prepared.run(data)
        if prepared.count % 500 == 0 or prepared.count >= cases - 1:
            tell()

    def mutate(data: bytes, largest: int, number: int) -> bytes:
        rng = random.Random(number)
        selector, octets = data[: _SELECTOR.size].ljust(_SELECTOR.size, b"\0"), data[_SELECTOR.size :]
        if rng.random() < 0.02:
            selector = rng.randbytes(_SELECTOR.size)
        if rng.random() < 0.5:
            name = prepared.names[_SELECTOR.unpack(selector)[0] % len(prepared.names)]
            octets = rng.choice(MUTATIONS)(rng, octets, prepared.table[name].samples)
        else:
            octets = atheris.Mutate(octets, max(1, largest - _SELECTOR.size))
        return (selector + octets)[:largest]

    options = [f"-runs={cases}", f"-seed={seed % (1 << 31) or 1}", f"-max_len={LARGEST}", "-timeout=60"]
    options += ["-rss_limit_mb=0", f"-artifact_prefix={corpus.parent}/", "-verbosity=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


def _mutate(prepared: Cases, seed: int, cases: int, corpus: Path) -> None:
    """Without knowledge of what an input reaches, every input of the corpus has the same chance."""
    from tests.soak.decoder_mutations import mutated

    rng = random.Random(seed)
    by_name: dict[str, list[bytes]] = {name: list(decoder.samples) for name, decoder in prepared.table.items()}
    for path in sorted(corpus.iterdir()):
        data = path.read_bytes()
        if len(data) >= _SELECTOR.size:
            name = prepared.names[_SELECTOR.unpack_from(data)[0] % len(prepared.names)]
            by_name[name].append(data[_SELECTOR.size :])
    shares = [prepared.table[name].share for name in prepared.names]
    for number in rng.choices(range(len(prepared.names)), shares, k=cases):
        prepared.run(_SELECTOR.pack(number) + mutated(rng, by_name[prepared.names[number]]))


# -- rounds ------------------------------------------------------------------------------------------------------------


def engine() -> str:
    return GUIDED if importlib.util.find_spec("atheris") is not None else PLAIN


def in_a_child(seed: int, cases: int, corpus: Path, engine: str) -> Ran:
    with tempfile.TemporaryDirectory(prefix="bookstand-fuzz-report-") as folder:
        report = Path(folder, "report")
        arguments = [engine, str(seed), str(cases), str(corpus), str(report)]
        ended = subprocess.run(
            [sys.executable, "-m", "tests.soak.decoder_fuzz", *arguments],
            env=own_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        noted = Path(folder, "problems")
        problems = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
        if ended.returncode:
            problems.append(f"the child ended with {ended.returncode}: {ended.stderr[-2000:]}")
        cases, seconds = json.loads(report.read_text()) if report.exists() else (0, 0.0)
    return Ran(cases, seconds, problems)


def _trim(corpus: Path) -> None:
    """Samples are written again by the next round."""
    inputs = sorted(corpus.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in inputs[:-_KEPT]:
        path.unlink()


class _Campaign:
    def round(self, seed: int) -> Done:
        CORPUS.mkdir(parents=True, exist_ok=True)
        ran = in_a_child(seed, CASES, CORPUS / "corpus", engine())
        _trim(CORPUS / "corpus")
        return Done(ran.cases, ran.problems, Counter({f"CPU seconds, {engine()}": round(ran.cpu_seconds)}))

    def end(self) -> Done:
        return Done(0, [])


@contextmanager
def _campaign(seconds: float) -> Iterator[_Campaign]:
    yield _Campaign()


def one_round(seed: int, cases: int = CASES, engine: str = PLAIN) -> Done:
    """A round that can be repeated: from the samples alone."""
    with tempfile.TemporaryDirectory(prefix="bookstand-fuzz-corpus-") as folder:
        ran = in_a_child(seed, cases, Path(folder, "corpus"), engine)
    return Done(ran.cases, ran.problems, Counter({f"CPU seconds, {engine}": round(ran.cpu_seconds)}))


KIND = Kind(one_round, _campaign)

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))

"""Command line of jobs: ``bookstand spark NAME …``, ``python -m bookstand.pipeline NAME …`` and ``spark-submit``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bookstand.errors import BookstandError, IncorrectParameterError, StoreNotFoundError
from bookstand.pipeline.execution.protocol import Job, Progress, Runner, execute
from bookstand.pipeline.execution.summary import Summary
from bookstand.pipeline.execution.worker import Limits
from bookstand.pipeline.jobs.bucket_cutting import CutSettings, step_millis
from bookstand.pipeline.tables.sources import DataSource, clusters, local_path, places, stores
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format.escapes import visible
from bookstand.storage.process.data_files import sync_file
from bookstand.storage.process.process_markers import sync_folder

FINE, NOT_ALL, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
MEANINGS = {
    FINE: "success: all units are done, and no damage was found",
    NOT_ALL: "a unit failed or damage was found; the summary lists both",
    WRONG_USE: "invalid arguments",
    INTERRUPTED: "interrupted; run the job again to resume it",
}
_GIVEN = "given"
_LIMITS = {
    "max_expanded_bytes": "treat an entry or a record that expands to more than N bytes as damaged",
    "max_expansion_ratio": "treat one as damaged that expands to more than 32 MiB and N times its stored size",
}

_Made = Callable[[argparse.Namespace], Job]


_PROGRAM = "python -m bookstand.pipeline"


def main(arguments: Sequence[str] | None = None, program: str = _PROGRAM) -> int:
    """Run a job from a command line. A closed output pipe does not change the exit code."""
    code = FINE
    try:
        options = parser(program).parse_args(arguments)
        code, summary = _done(options)
        if summary is not None:
            print(summary.to_json() if options.json else summary)
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except KeyboardInterrupt:
        code = INTERRUPTED
        with suppress(OSError):
            print("bookstand: interrupted", file=sys.stderr)
    finally:
        _close_broken_pipes()
    return code


def _done(options: argparse.Namespace) -> tuple[int, Summary | None]:
    try:
        report = None if options.summary is None else _report_file(options.summary)
        summary = run(options.make(options), options)
        if report is not None:
            _write_report(report, summary.to_json() + "\n")
    except (BookstandError, OSError) as error:
        with suppress(BrokenPipeError):
            print(f"bookstand: {visible(str(error))}", file=sys.stderr)
        return WRONG_USE if isinstance(error, IncorrectParameterError | StoreNotFoundError) else NOT_ALL, None
    return FINE if summary.ok else NOT_ALL, summary


def _close_broken_pipes() -> None:
    """Redirect closed pipes to the null device: otherwise Python reports an error at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report_file(path: str) -> Path:
    """Validate the path of the summary file, before the job does any work."""
    file = Path(local_path(path, "summary"))
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise IncorrectParameterError(f"summary must be a file that can be written, not {path!r}")
    return file


def _write_report(file: Path, text: str) -> None:
    target = file.resolve()
    if target.exists() and not target.is_file():
        # A pipe or a terminal cannot be replaced by a rename.
        target.write_text(text)
        return
    growing = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        growing.write_text(text)
        sync_file(str(growing))
        growing.replace(target)
    finally:
        growing.unlink(missing_ok=True)
    sync_folder(str(target.parent))


def run(job: Job, options: argparse.Namespace) -> Summary:
    # Spark shows its own progress bar.
    shown = options.master is None and sys.stderr.isatty()
    with _runner(options) as runner, _progress(job.name, shown) as progress:
        summary = execute(
            job, runner, dry_run=options.dry_run, only=options.unit, again=options.again, progress=progress
        )
    if job.name == "stats":
        from bookstand.pipeline.jobs.stats import added_up

        summary.facts = added_up(summary.results)
    return summary


# -- arguments ---------------------------------------------------------------------------------------------------------


def parser(program: str = _PROGRAM) -> argparse.ArgumentParser:
    codes = "\n".join(["exit codes:", *(f"  {code}  {meaning}" for code, meaning in MEANINGS.items())])
    layout = argparse.RawDescriptionHelpFormatter
    about = "Jobs over many stores and many bookies' disks."
    top = argparse.ArgumentParser(program, description=about, epilog=codes, formatter_class=layout)
    jobs = top.add_subparsers(required=True, metavar="JOB", dest="job")
    for name, (help_text, add, make) in JOBS.items():
        one = jobs.add_parser(name, help=help_text, description=help_text, epilog=codes, formatter_class=layout)
        add(one)
        _add_common(one)
        one.set_defaults(make=make)
    return top


def _add_common(one: argparse.ArgumentParser) -> None:
    how = one.add_argument_group("execution")
    how.add_argument(
        "--master",
        metavar="URL",
        help="run on Spark: local[*], a cluster's URL, sc://HOST for a Connect server, or 'given' under spark-submit",
    )
    how.add_argument(
        "--processes", metavar="N", type=_positive, default=1, help="number of units that run in parallel without Spark"
    )
    how.add_argument(
        "--unit-seconds",
        metavar="N",
        type=_positive,
        default=Limits().seconds,
        help="stop a unit after N seconds; 6 hours by default",
    )
    how.add_argument("--unit-memory", metavar="MIB", type=_positive, help="stop a unit that allocates more than MIB")
    how.add_argument("--dry-run", action="store_true", help="change nothing; report what would be done")
    how.add_argument("--unit", metavar="NAME", action="append", default=[], help="only this unit; may be repeated")
    how.add_argument("--again", action="store_true", help="repeat units that are already done")
    how.add_argument("--json", action="store_true", help="print the summary as JSON")
    how.add_argument("--summary", metavar="FILE", help="also write the summary to FILE as JSON")


def _add_limits(one: argparse.ArgumentParser) -> None:
    for name, usual in zip(ExpansionLimits._fields, DEFAULT, strict=True):
        option, meaning = f"--{name.replace('_', '-')}", f"{_LIMITS[name]} ({usual})"
        one.add_argument(option, metavar="N", type=_positive, default=usual, help=meaning)


def _limits(options: argparse.Namespace) -> ExpansionLimits:
    return ExpansionLimits(options.max_expanded_bytes, options.max_expansion_ratio)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text}")
    return number


def _stores(one: argparse.ArgumentParser) -> None:
    one.add_argument("stores", nargs="+", metavar="STORE", help="a store, or a glob of stores")
    one.add_argument(
        "--topic", metavar="PATTERN", action="append", default=[], help="only these topics; may be repeated"
    )
    one.add_argument(
        "--cursor", metavar="PATTERN", action="append", default=[], help="only these cursors; may be repeated"
    )


def _taking_over(one: argparse.ArgumentParser) -> None:
    one.add_argument("--take-over", action="store_true", help="also change cursors that other processes may have open")


def _cutting(one: argparse.ArgumentParser, least: str) -> None:
    usual = CutSettings()
    one.add_argument("--least", metavar="N", type=_positive, help=least)
    one.add_argument(
        "--step-seconds",
        metavar="N",
        type=float,
        default=usual.step_millis / 1000,
        help="maximum time span of a segment",
    )
    one.add_argument(
        "--most-in-segment",
        metavar="N",
        type=int,
        default=usual.most_in_segment,
        help="maximum number of messages in a segment; -1 means unlimited",
    )
    one.add_argument(
        "--precision-bits", metavar="N", type=int, default=0, help="round times up to multiples of 2^N milliseconds"
    )
    one.add_argument(
        "--work",
        metavar="FOLDER",
        help="folder for temporary files, on a file system that all tasks share",
    )


def _cut(options: argparse.Namespace) -> CutSettings:
    usual = CutSettings()
    return CutSettings(
        usual.least if options.least is None else options.least,
        step_millis(options.step_seconds),
        options.most_in_segment,
        options.precision_bits,
    )


def _paths_of_stores(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(place.paths[0] for place in stores(options.stores))


# -- rebuild-delayed ---------------------------------------------------------------------------------------------------


def _add_rebuild(one: argparse.ArgumentParser) -> None:
    _stores(one)
    _cutting(one, f"minimum number of messages in a bucket; {CutSettings().least:,} by default")
    one.add_argument("--due-by", metavar="MS", type=int, default=0, help="leave out messages that are due by this time")
    one.add_argument("--leave-rest", action="store_true", help="do not seal the last bucket of each topic")
    one.add_argument("--together", action="store_true", help="the stores have parts of the same topics")
    one.add_argument(
        "--table", metavar="FILE", action="append", default=[], help="Parquet file with the messages; may be repeated"
    )
    _add_limits(one)


def _make_rebuild(options: argparse.Namespace) -> Job:
    from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed

    return RebuildDelayed(
        _paths_of_stores(options),
        _cut(options),
        tuple(options.topic),
        tuple(options.cursor),
        options.due_by,
        not options.leave_rest,
        options.together,
        tuple(options.table),
        options.work,
        limits=_limits(options),
    )


# -- recut -------------------------------------------------------------------------------------------------------------


def _add_recut(one: argparse.ArgumentParser) -> None:
    _stores(one)
    _taking_over(one)
    _cutting(one, "merge and split buckets so that each has at least N messages; by default each keeps its ledgers")
    _add_limits(one)


def _make_recut(options: argparse.Namespace) -> Job:
    from bookstand.pipeline.jobs.recut import Recut

    resize = options.least is not None
    return Recut(
        _paths_of_stores(options),
        _cut(options),
        resize,
        tuple(options.topic),
        tuple(options.cursor),
        options.work,
        options.take_over,
        limits=_limits(options),
    )


# -- migrate-cursors ---------------------------------------------------------------------------------------------------


def _add_migrate(one: argparse.ArgumentParser) -> None:
    _stores(one)
    _taking_over(one)
    one.add_argument(
        "--to", choices=("pages", "snapshot"), default="pages", help="form of the cursors; pages by default"
    )
    _add_limits(one)


def _make_migrate(options: argparse.Namespace) -> Job:
    from bookstand.pipeline.jobs.migrate_cursors import MigrateCursors

    return MigrateCursors(
        _paths_of_stores(options),
        options.to,
        tuple(options.topic),
        tuple(options.cursor),
        options.take_over,
        _limits(options),
    )


# -- import ------------------------------------------------------------------------------------------------------------


def _add_import(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "clusters", nargs="+", metavar="FOLDER", help="folder of a cluster, with its bookies and metadata.jsonl[.gz]"
    )
    one.add_argument(
        "--output",
        metavar="FOLDER",
        required=True,
        help="folder for the stores, which are named after the clusters' folders",
    )
    one.add_argument("--metadata", metavar="FILE", help="metadata dump, for a single cluster")
    _add_limits(one)
    one.add_argument("--unlisted", action="store_true", help="also import ledgers that are not in the metadata")
    one.add_argument("--password", metavar="WORD", action="append", default=[], help="ledger password; may be repeated")


def _make_import(options: argparse.Namespace) -> Job:
    from bookstand.pipeline.jobs.import_disks import Import

    if options.metadata is not None and len(clusters(options.clusters)) > 1:
        raise IncorrectParameterError(
            "--metadata requires a single cluster: put the dumps of several clusters in their folders"
        )
    found: dict[str, DataSource] = {}
    for place in clusters(options.clusters, options.metadata, _limits(options)):
        name = Path(os.path.commonpath(place.paths)).resolve().name
        if name in found:
            raise IncorrectParameterError(f"two clusters would become the store {name!r}")
        found[name] = place
    return Import(found, options.output, options.unlisted, tuple(map(os.fsencode, options.password)))


# -- export, verify, stats ---------------------------------------------------------------------------------------------


def _add_places(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "places", nargs="+", metavar="PATH", help="a store, the folder of a cluster's bookies, or a glob of either"
    )
    one.add_argument(
        "--metadata",
        metavar="FILE",
        help="metadata dump, for a single cluster; by default metadata.jsonl[.gz] in its folder",
    )
    _add_limits(one)


def _places(options: argparse.Namespace) -> tuple[DataSource, ...]:
    return tuple(places(options.places, options.metadata, _limits(options)))


def _add_export(one: argparse.ArgumentParser) -> None:
    _add_places(one)
    one.add_argument("--output", metavar="FOLDER", required=True, help="folder for the tables")
    one.add_argument("--table", metavar="NAME", action="append", default=[], help="only this table; may be repeated")
    one.add_argument("--topic", metavar="NAME", action="append", default=[], help="only this topic; may be repeated")


def _make_export(options: argparse.Namespace) -> Job:
    from bookstand.pipeline.jobs.export import TABLES, Export

    return Export(_places(options), options.output, tuple(options.table) or TABLES, tuple(options.topic))


def _make_verify(options: argparse.Namespace) -> Job:
    from bookstand.pipeline.jobs.verify import Verify

    return Verify(_places(options))


def _add_stats(one: argparse.ArgumentParser) -> None:
    _add_places(one)
    one.add_argument(
        "--buckets-only", action="store_true", help="do not read messages; count only delayed messages in buckets"
    )


def _make_stats(options: argparse.Namespace) -> Job:
    from bookstand.pipeline.jobs.stats import Stats

    return Stats(_places(options), options.buckets_only)


JOBS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], _Made]] = {
    "rebuild-delayed": ("Rebuild the buckets of delayed messages from the messages.", _add_rebuild, _make_rebuild),
    "recut": (
        "Rewrite buckets of delayed messages with other sizes.",
        _add_recut,
        _make_recut,
    ),
    "migrate-cursors": ("Convert cursors to pages and markers, or to Pulsar snapshots.", _add_migrate, _make_migrate),
    "import": ("Import bookies' disks into stores, one per cluster.", _add_import, _make_import),
    "export": ("Export the data of stores and disks as Parquet.", _add_export, _make_export),
    "verify": ("Read all data, and report damage.", _add_places, _make_verify),
    "stats": ("Count the ledgers, entries and messages of a fleet.", _add_stats, _make_stats),
}


# -- runners and progress ----------------------------------------------------------------------------------------------


@contextmanager
def _runner(options: argparse.Namespace) -> Iterator[Runner]:
    limits = Limits(options.unit_seconds, None if options.unit_memory is None else options.unit_memory << 20)
    if options.master is None:
        from bookstand.pipeline.execution.local_runner import LocalRunner

        yield LocalRunner(options.processes, limits)
        return
    from bookstand.pipeline.spark.runner import SparkRunner
    from bookstand.pipeline.spark.session import configured_session, session

    if options.master == _GIVEN:
        spark = configured_session()
    else:
        # Spark's progress bar is readable only on a terminal.
        shown = str(sys.stderr.isatty()).lower()
        spark = session(master=options.master, settings={"spark.ui.showConsoleProgress": shown})
    try:
        yield SparkRunner(spark, limits)
    finally:
        if options.master != _GIVEN:
            spark.stop()


@contextmanager
def _progress(name: str, shown: bool) -> Iterator[Progress | None]:
    """Show a progress bar, if ``shown`` and if rich is installed."""
    if not shown:
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

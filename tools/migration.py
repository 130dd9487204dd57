"""A pipeline job on one store as a command: changed and skipped cursors, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import typer

import bookstand
from bookstand.disk.importer.diff import IMPORT_NODE
from bookstand.errors import IllegalOperationError, NoSuchNodeError
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import Job, execute
from bookstand.pipeline.execution.summary import Summary
from bookstand.tools.cli import output
from bookstand.tools.cli.exit_codes import DAMAGE, FAILED, FINE, code_of_failure
from bookstand.tools.cli.options import progress_bar
from bookstand.tools.cli.output import Column, Row, counted
from bookstand.tools.view.targets import topics_meant

Cursors = Annotated[
    list[str] | None,
    typer.Option(
        "--cursor",
        metavar="PATTERN",
        help="Only these cursors: a name, or a pattern in which * matches any characters. May be repeated.",
        show_default=False,
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", help="Also change cursors that another process may have open; its next write to them fails."
    ),
]


class Outcome(NamedTuple):
    """Result of a job. ``cursors`` are those in the requested form, or that a dry run would convert; ``left`` are
    skipped cursors and ``failed`` topics, with the reasons; ``problems`` are objects that could not be read."""

    cursors: list[dict[str, Any]]
    left: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    problems: list[str]

    @property
    def code(self) -> int:
        codes = {code_of_failure(one["why"]) for one in self.failed}
        return max(codes | {code_of_left(self.left, self.problems)})


def code_of_left(left: Sequence[Row], problems: Sequence[str]) -> int:
    """Return the exit code for skipped cursors, whose facts are from
    :func:`bookstand.pipeline.jobs.busy_cursors.skip_reason`."""
    codes = {DAMAGE if one["damaged"] else FAILED for one in left}
    return max(codes | {DAMAGE for _ in problems}, default=FINE)


def left_line(one: Row) -> str:
    return f"skipped: {output.topic(one['topic'])} : {one['cursor']}: {one['why']}"


def run_job(path: str, job: Job, topics: Sequence[str], cursors: Sequence[str], dry_run: bool) -> Outcome:
    """Run ``job`` on the store at ``path``. Every topic and cursor that is named must exist."""
    # If the free list is damaged, writing overwrites pages in use.
    with bookstand.open(path, create=False, read_only=True, check="structure") as opened:
        topics_meant(opened, topics)
        if opened.storage.node(IMPORT_NODE) is not None:
            raise IllegalOperationError("the store has an unfinished import: run the import again to finish it first")
    with progress_bar("checking topics", counts=True) as progress:
        # ``processes=0``: units run in this process, which is safe after the check. ``again``: repeating units is
        # harmless.
        summary = execute(job, LocalRunner(processes=0), dry_run=dry_run, again=True, progress=progress)
    found = _outcome(summary, path)
    if not any(found) and (topics or cursors):
        raise NoSuchNodeError(f"there is nothing to migrate that matches {' and '.join([*topics, *cursors])}")
    return found


def _outcome(summary: Summary, store: str) -> Outcome:
    told: dict[str, list[dict[str, Any]]] = {"cursors": [], "left": []}
    failed = []
    for result in sorted(summary.results, key=lambda one: one.unit):
        topic = result.unit.removeprefix(f"{store} ")
        for what, rows in told.items():
            for name, facts in result.facts.get(what, {}).items():
                rows.append({"topic": topic, "cursor": name, **facts})
        if result.failure is not None:
            failed.append({"topic": topic, "why": result.failure})
    return Outcome(told["cursors"], told["left"], failed, list(summary.problems))


def became(before: object, after: object) -> str:
    """Format a change for a table: the value before and after."""
    return str(after) if before == after else f"{before} → {after}"


def show(
    kind: str,
    store: str,
    found: Outcome,
    dry_run: bool,
    json: bool,
    columns: Sequence[Column],
    row: Callable[[Row], Row],
    **facts: Any,
) -> None:
    """Print the result and exit. ``row`` converts the facts of a cursor to a row of the table."""
    if json:
        output.document({"kind": kind, "store": store, "dry_run": dry_run, **facts, **found._asdict()})
    else:
        _print(store, found, dry_run, columns, row)
    raise typer.Exit(found.code)


def _print(store: str, found: Outcome, dry_run: bool, columns: Sequence[Column], row: Callable[[Row], Row]) -> None:
    output.paragraph(f"store {store}{', which was not changed' if dry_run else ''}")
    changed = [row(one) for one in found.cursors if one["changed"]]
    output.table(columns, changed)
    same = len(found.cursors) - len(changed)
    output.line(
        f"{counted(len(changed), 'cursor')} {'would be changed' if dry_run else 'changed'}"
        + (f", {same} already in this form" if same else "")
    )
    for one in found.left:
        output.paragraph(left_line(one))
    for one in found.failed:
        output.paragraph(f"skipped: {output.topic(one['topic'])}: {one['why'].partition(': ')[2]}")
    for problem in found.problems:
        output.paragraph(f"damage: {problem}")

"""Damaged files, each opened and read by a process of its own: it may be refused, it may lose entries and say so, but
it never ends a process and never gives a wrong payload."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bookstand
from tests.kit import Program

PAGE = 4096
LEDGERS = {0: 300, 1: 40, 2: 3, 4: 5}
"""Entries of each ledger of :func:`make`; ledger 2's and 4's are larger than a page."""

ROLLED_BACK = [[4, LEDGERS[4] - 1]]
"""Entries that are missing in the commit before the last."""

# An edit is ["cut", size], ["write", offset, hex] or ["copy", from page, to page]; a damage is a list of them.
Damage = list[list[Any]]


def payload(ledger_id: int, entry_id: int) -> bytes:
    size = 9_000 + 5_000 * entry_id if ledger_id in (2, 4) else 10 + 37 * entry_id % 300
    return (b"%d:%d/" % (ledger_id, entry_id) * (size // 4 + 1))[:size]


def make(path: Path) -> None:
    """A store with closed and open ledgers, large entries last of all, a deleted ledger and some nodes."""
    with bookstand.open(path, witness=True) as store:
        for ledger_id in (0, 1, 2):
            writer = store.create_ledger()
            for first in range(0, LEDGERS[ledger_id], 50):
                last = min(first + 50, LEDGERS[ledger_id])
                writer.append_many(payload(ledger_id, entry_id) for entry_id in range(first, last))
            if ledger_id != 1:
                writer.close()
        deleted = store.create_ledger()
        deleted.append_many([b"deleted"] * 20)
        store.delete_ledger(deleted.id)
        for number in range(50):
            store.nodes.put(f"/node/{number}", b"value of node %d" % number)
        writer = store.create_ledger()
        for entry_id in range(LEDGERS[4]):
            writer.append(payload(4, entry_id))
        assert writer.id == 4


def trials(pristine: Path, damages: Iterable[Damage], folder: Path, **options: Any) -> list[dict[str, Any]]:
    """What became of each: see :func:`_examine`; ``signal`` is what ended the process, or 0."""
    damages = list(damages)
    folder.mkdir(exist_ok=True)
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"pristine": str(pristine), "damages": damages, "options": options}))
    source = "import sys; from tests.storage import trials; trials.run(sys.argv[1])"
    with Program(source, plan, PYTHONFAULTHANDLER="") as program:
        assert program.finish() == 0, program.lines[-3:]
    results = [json.loads(line) for line in program.lines]
    assert len(results) == len(damages)
    return results


def check(results: Iterable[dict[str, Any]], damages: Iterable[Damage], witness: bool = False) -> list[dict[str, Any]]:
    """None of them may be bad; returns them."""
    bad = []
    results = list(results)
    for result, damage in zip(results, damages, strict=True):
        why = None
        if result["signal"]:
            why = "killed"
        elif result["wrong"]:
            why = "wrong payload"
        elif result["leaked"]:
            why = "an error that is not ours"
        elif result["missing"] == ROLLED_BACK and not result["problems"] and not witness:
            # A rollback to the commit before the last one: only a witness can tell.
            continue
        elif {-13, -7} & set(result["codes"]):
            why = "absence instead of damage"
        elif result["opened"] and result["lost"] and not result["problems"]:
            why = "lost without a problem in verify()"
        if why is not None:
            bad.append((why, damage, result))
    assert not bad, f"{len(bad)} of {len(results)}: {bad[:5]}"
    return results


def run(plan_file: str) -> None:
    # What every trial needs is loaded before it is forked off.
    import lmdb.verify
    import numpy

    import bookstand.storage.verify

    assert lmdb.verify
    assert numpy
    assert bookstand.storage.verify
    plan = json.loads(Path(plan_file).read_text())
    folder = os.path.dirname(plan_file)
    for number, damage in enumerate(plan["damages"]):
        path = os.path.join(folder, f"trial-{number}")
        shutil.copytree(plan["pristine"], path)
        edit(os.path.join(path, "data.mdb"), damage)
        inlet, outlet = os.pipe()
        child = os.fork()
        if not child:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)
            result = _examine(path, plan["options"])
            os.write(outlet, json.dumps(result).encode())
            os._exit(0)
        os.close(outlet)
        with open(inlet, "rb") as stream:
            told = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        result = json.loads(told) if told else dict(_nothing(), leaked=f"exit status {status}" if status >= 0 else "")
        print(json.dumps(result | {"signal": max(0, -status)}))
        shutil.rmtree(path)
    sys.stdout.flush()


def edit(file: str, damage: Damage) -> None:
    with open(file, "r+b") as stream:
        for kind, *arguments in damage:
            if kind == "cut":
                stream.truncate(arguments[0])
            elif kind == "write":
                stream.seek(arguments[0])
                stream.write(bytes.fromhex(arguments[1]))
            else:
                stream.seek(arguments[0] * PAGE)
                page = stream.read(PAGE)
                stream.seek(arguments[1] * PAGE)
                stream.write(page)


def _nothing() -> dict[str, Any]:
    return {
        "opened": False,
        "error": None,
        "right": 0,
        "wrong": 0,
        "lost": 0,
        "missing": [],
        "codes": [],
        "problems": 0,
        "written": False,
        "leaked": "",
    }


def _examine(path: str, options: dict[str, Any]) -> dict[str, Any]:
    """Open, read everything, verify, and write a little."""
    result = _nothing()
    writing = options.pop("then_write", False)
    try:
        try:
            store = bookstand.open(path, **options)
        except bookstand.BookstandError as error:
            result["error"] = type(error).__name__
            return result
        result["opened"] = True
        for ledger_id, count in LEDGERS.items():
            _read(store, ledger_id, count, result)
        try:
            result["problems"] = len(store.verify().problems)
        except bookstand.BookstandError as error:
            result["problems"] = 1
            result["error"] = type(error).__name__
        if writing:
            try:
                store.create_ledger().append(b"written to it")
                result["written"] = True
            except bookstand.BookstandError as error:
                result["error"] = type(error).__name__
        store.close()
    except BaseException as error:
        result["leaked"] = repr(error)
    return result


def _read(store: bookstand.Store, ledger_id: int, count: int, result: dict[str, Any]) -> None:
    try:
        reader = store.open_ledger(ledger_id, recovery=False)
    except bookstand.BookstandError as error:
        result["lost"] += count
        result["codes"].append(getattr(error, "code", None))
        # An absent ledger is what a lost record looks like; verify() has to tell.
        if result["codes"][-1] == -25:
            result["codes"].pop()
        return
    for entry_id in range(count):
        try:
            (entry,) = reader.read_unconfirmed(entry_id, entry_id)
        except bookstand.BookstandError as error:
            result["lost"] += 1
            if len(result["missing"]) < 10:
                result["missing"].append([ledger_id, entry_id])
            code = getattr(error, "code", None)
            if code not in result["codes"]:
                result["codes"].append(code)
        else:
            result["right" if entry.data == payload(ledger_id, entry_id) else "wrong"] += 1

"""Queries of tables, and their options."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from bookstand.errors import IncorrectParameterError
from bookstand.pipeline.spark import pushdown
from bookstand.pipeline.tables.predicate import ALL, Predicate
from bookstand.pipeline.tables.schemas import ERROR, Table, table_of
from bookstand.pipeline.tables.sources import BOOKIE, STORE, DataSource, clusters, stores
from bookstand.proto.expansion import DEFAULT, ExpansionLimits

PERMISSIVE, STRICT = "permissive", "strict"
FAST, SUBPROCESS = "fast", "subprocess"


@dataclass(frozen=True)
class Query:
    """Query of a table. ``columns`` are the columns of the result, in order."""

    table_name: str
    columns: tuple[str, ...]
    strict: bool = False
    wanted: Predicate = ALL
    passwords: tuple[bytes, ...] = ()
    partitions: int | None = None
    """Number of parts. None: about one for each core, and fewer for small reads."""
    now_ms: int = 0
    unsealed: bool = False
    check: str = FAST
    """``subprocess``: before planning, a child process reads the whole store. Damage may crash it, but not this one."""

    @property
    def table(self) -> Table:
        return table_of(self.table_name)

    @property
    def names(self) -> frozenset[str]:
        """Columns to read: the columns of the result, of the predicate, and the error column."""
        return frozenset((*self.columns, *self.wanted.columns, ERROR))


def query(table: str, columns: tuple[str, ...] | None = None, *, where: str | None = None, **more: object) -> Query:
    """Make a query of a table, by default of all columns and rows.

    ``where`` is a filter expression (see :mod:`bookstand.pipeline.spark.pushdown`). ``more`` has fields of
    :class:`Query`.
    """
    of = table_of(table)
    if where is not None:
        more["wanted"] = pushdown.parse(where, of)
    return Query(table, of.chosen(columns), **more)  # type: ignore[arg-type]


# -- options -----------------------------------------------------------------------------------------------------------

LIMITS = ExpansionLimits._fields
_READ = ("path", "paths", "table", "columns", "where", "mode", "partitions", "passwords", "now_ms", "unsealed", *LIMITS)
OPTIONS: dict[str, tuple[str, ...]] = {
    STORE: (*_READ, "check", "stream", "ledger", "topic", "start", "max_entries"),
    BOOKIE: (*_READ, "metadata"),
}


def checked_options(kind: str, given: Mapping[str, str]) -> dict[str, str]:
    """Validate the names of options. The result has lower-case names."""
    options = {name.lower(): value for name, value in given.items()}
    if "provider" in options:
        raise IncorrectParameterError(
            "Spark's catalog does not hand a table's options back when it is read: CREATE TEMPORARY VIEW … USING … "
            "OPTIONS (…) keeps them"
        )
    unknown = sorted(options.keys() - set(OPTIONS[kind]))
    if unknown:
        raise IncorrectParameterError(f"there is no option {', '.join(unknown)}, but {', '.join(OPTIONS[kind])}")
    return options


def query_of(options: Mapping[str, str], table: str | None = None) -> Query:
    """Make a query from options with lower-case names. ``table`` is the default table."""
    name = options.get("table", table or "entries")
    columns = options.get("columns")
    mode = options.get("mode", PERMISSIVE)
    if mode not in (PERMISSIVE, STRICT):
        raise IncorrectParameterError(f"option mode is {PERMISSIVE} or {STRICT}, not {mode!r}")
    partitions = _number(options, "partitions", 1) if "partitions" in options else None
    return Query(
        name,
        table_of(name).chosen(None if columns is None else tuple(_list(columns))),
        mode == STRICT,
        pushdown.parse(options["where"], table_of(name)) if "where" in options else ALL,
        tuple(one.encode() for one in _list(options["passwords"])) if "passwords" in options else (),
        partitions,
        _number(options, "now_ms", 0) if "now_ms" in options else 0,
        _truth(options, "unsealed"),
        _check(options),
    )


def places_of(kind: str, options: Mapping[str, str]) -> list[DataSource]:
    paths = [*_paths(options.get("paths")), *([options["path"]] if "path" in options else [])]
    if len(paths) == 1:
        paths = _paths(paths[0])
    if not paths:
        raise IncorrectParameterError("option path says where there is something to read: load(path)")
    limits = ExpansionLimits(
        *(_number(options, name, 1) if name in options else usual for name, usual in zip(LIMITS, DEFAULT, strict=True))
    )
    return stores(paths, limits) if kind == STORE else clusters(paths, options.get("metadata"), limits)


def _paths(text: str | None) -> list[str]:
    """Parse one path, or several as a JSON list. Commas are not separators: names of folders may contain them."""
    if not text:
        return []
    return _list(text) if text.lstrip().startswith("[") and not os.path.exists(text) else [text]


def _list(text: str) -> list[str]:
    """Parse a JSON list or a comma-separated list."""
    if not text.lstrip().startswith("["):
        return [word.strip() for word in text.split(",")]
    try:
        found = json.loads(text)
    except ValueError as error:
        raise IncorrectParameterError(f"{text!r} is no JSON list: {error}") from None
    if not all(isinstance(one, str) for one in found):
        raise IncorrectParameterError(f"{text!r} is no list of texts")
    return list(found)


def _number(options: Mapping[str, str], name: str, least: int) -> int:
    text = options[name]
    try:
        number = int(text)
    except ValueError:
        raise IncorrectParameterError(f"option {name} is a number, not {text!r}") from None
    if number < least:
        raise IncorrectParameterError(f"option {name} is {least} at least, not {number}")
    return number


def _check(options: Mapping[str, str]) -> str:
    check = options.get("check", FAST)
    if check not in (FAST, SUBPROCESS):
        raise IncorrectParameterError(f"option check is {FAST} or {SUBPROCESS}, not {check!r}")
    return check


def _truth(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise IncorrectParameterError(f"option {name} is true or false, not {text!r}")
    return text == "true"

"""Filter expressions: the conditions of the option ``where``, which are evaluated while the data is read.

::

    conditions  condition [AND condition]...
    condition   column = constant, also <, <=, > and >=
                column BETWEEN constant AND constant
                column IN (constant, ...)
                column IS NOT NULL
                (conditions)

Semantics are as in SQL: no condition is true for a null column, and keywords and names are case-insensitive.
Other expressions, such as ``OR`` and functions, are rejected; evaluate them with ``DataFrame.where``.

The expression is an option and not a filter that Spark pushes down: Spark stores pushed filters in an object that all
frames of one ``load`` share, and the filter of one frame would also remove rows from the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from bookstand.errors import IncorrectParameterError
from bookstand.pipeline.tables.predicate import ALL, HIGHEST, LOWEST, Predicate
from bookstand.pipeline.tables.schemas import Column, Table

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?[0-9]+(?![\w.]))
      | (?P<text>'(?:[^'\\]|'')*'|"(?:[^"\\]|"")*")
      | (?P<name>[A-Za-z_]\w*)
      | (?P<sign><=|>=|==|[=<>(),])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_COMPARISONS = ("=", "==", "<", "<=", ">", ">=")
_GRAMMAR = (
    "a condition compares a column with a constant (=, <, <=, >, >=, BETWEEN ... AND ..., IN (...), IS NOT NULL), and "
    "AND joins conditions; apply other conditions with DataFrame.where"
)


def parse(text: str, table: Table) -> Predicate:
    """Parse the conditions on columns of ``table``."""
    return _Parser(text, table).parse()


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, text: str, table: Table) -> None:
        self._text = text
        self._table = table
        self._tokens = list(self._split())
        self._next = 0

    def parse(self) -> Predicate:
        wanted = self._conditions(ALL)
        if self._token.kind != "end":
            self._reject("AND or the end")
        return wanted

    # -- tokens ------------------------------------------------------------------------------------------------------

    def _split(self) -> Iterator[_Token]:
        at = 0
        while True:
            found = _TOKEN.match(self._text, at)
            if found is None or found.lastgroup is None:
                rest = self._text[at:].lstrip()
                raise self._error(f"cannot be read from {rest[:40]!r} on", len(self._text) - len(rest))
            kind = found.lastgroup
            yield _Token(kind, found[kind], found.start(kind))
            if kind == "end":
                return
            at = found.end()

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += 1
        return token

    def _takes(self, *words: str) -> bool:
        """Consume these keywords or signs if they are next. Return True if they were."""
        coming = self._tokens[self._next : self._next + len(words)]
        found = [token.text.upper() for token in coming if token.kind in ("name", "sign")] == list(words)
        if found:
            self._next += len(words)
        return found

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            self._reject(word)

    def _reject(self, expected: str) -> NoReturn:
        token = self._token
        given = "it ends" if token.kind == "end" else f"it has {token.text!r}"
        raise self._error(f"must have {expected} where {given}", token.at)

    def _error(self, what: str, at: int) -> IncorrectParameterError:
        return IncorrectParameterError(f"option where {what} (character {at + 1} of {self._text!r}): {_GRAMMAR}")

    # -- conditions --------------------------------------------------------------------------------------------------

    def _conditions(self, wanted: Predicate) -> Predicate:
        wanted = self._condition(wanted)
        while self._takes("AND"):
            wanted = self._condition(wanted)
        return wanted

    def _condition(self, wanted: Predicate) -> Predicate:
        if self._takes("("):
            wanted = self._conditions(wanted)
            self._expect(")")
            return wanted
        if self._token.kind != "name" or self._token.text.upper() == "NOT":
            self._reject("the name of a column")
        column = self._table[self._take().text.lower()]
        if self._takes("IS", "NOT", "NULL"):
            return wanted.not_null(column.name)
        if self._takes("IN", "("):
            values = [self._constant(column)]
            while self._takes(","):
                values.append(self._constant(column))
            self._expect(")")
            return _among(wanted, column, values)
        if self._takes("BETWEEN"):
            low = self._constant(column, ordered=True)
            self._expect("AND")
            high = self._constant(column, ordered=True)
            return _compared(_compared(wanted, column, ">=", low), column, "<=", high)
        if self._token.text not in _COMPARISONS:
            self._reject("a comparison")
        sign = self._take().text
        return _compared(wanted, column, sign, self._constant(column, ordered=sign not in ("=", "==")))

    def _constant(self, column: Column, *, ordered: bool = False) -> int | str:
        """Consume a constant of the column's type. ``ordered`` rejects columns that only support equality."""
        token = self._token
        if token.kind not in ("number", "text"):
            self._reject("a constant, a whole number or text in quotes,")
        if column.type in ("bigint", "int"):
            if token.kind != "number":
                raise self._error(f"must compare {column.name} ({column.type}) with a whole number", token.at)
            number = int(token.text) if len(token.text) <= 20 else HIGHEST + 1
            if not LOWEST <= number <= HIGHEST:
                raise self._error("must have numbers of 64 bits", token.at)
            self._next += 1
            return number
        if column.type != "string":
            raise self._error(f"cannot compare {column.name}, whose type is {column.type}", token.at)
        if ordered:
            raise self._error(f"cannot order {column.name} ({column.type}), only = and IN apply to it", token.at)
        if token.kind != "text":
            raise self._error(f"must compare {column.name} ({column.type}) with text in quotes", token.at)
        self._next += 1
        quote = token.text[0]
        return token.text[1:-1].replace(2 * quote, quote)


def _among(wanted: Predicate, column: Column, values: list[int | str]) -> Predicate:
    return wanted.among(column.name, values)  # type: ignore[arg-type]


def _compared(wanted: Predicate, column: Column, sign: str, value: int | str) -> Predicate:
    if sign in ("=", "==") or isinstance(value, str):
        return _among(wanted, column, [value])
    if (sign, value) in ((">", HIGHEST), ("<", LOWEST)):
        return wanted.among(column.name, ())
    low = {">": value + 1, ">=": value}.get(sign, LOWEST)
    high = {"<": value - 1, "<=": value}.get(sign, HIGHEST)
    return wanted.between(column.name, low, high)

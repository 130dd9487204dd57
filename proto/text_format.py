"""Parser for protobuf's text format, without the protobuf runtime.

It accepts the same input as BookKeeper's parser: field names and enum values are identifiers, ``:`` is optional before
a message, messages are enclosed in ``{}`` or ``<>``, ``#`` starts a comment, adjacent strings are concatenated, fields
may be separated by ``,`` or ``;``, and unknown fields are skipped.
"""

from __future__ import annotations

from bookstand.proto.wire_format import WireError, int64

_SPACE = frozenset(b" \t\n\r")
_LETTERS = frozenset(b"_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGITS = frozenset(b"0123456789")
_OCTAL = frozenset(b"01234567")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_IN_NUMBERS = _HEX | frozenset(b".xX+-")
_SUFFIXES = frozenset(b"uUlL")
_SIMPLE_ESCAPES = {
    ord(letter): value
    for letter, value in zip("abfnrtv\\'\"?", (7, 8, 12, 10, 13, 9, 11, 0x5C, 0x27, 0x22, 0x3F), strict=True)
}
_CLOSERS = {ord("{"): ord("}"), ord("<"): ord(">")}
_MASK64 = (1 << 64) - 1
_MAX_DEPTH = 64

_ESCAPES = {8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 0x5C: "\\\\", 0x27: "\\'", 0x22: '\\"'}


def quoted(data: bytes) -> str:
    """Format bytes as a string literal, escaping all but printable ASCII."""
    return '"' + "".join(_ESCAPES.get(b) or (chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}") for b in data) + '"'


class TextReader:
    """A cursor over a message in text format."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _peek(self) -> int:
        """Skip white space and comments, and return the next byte, -1 at the end."""
        data, at, end = self._data, self._at, len(self._data)
        while at < end:
            byte = data[at]
            if byte == 0x23:
                newline = data.find(b"\n", at)
                at = end if newline < 0 else newline
            elif byte in _SPACE:
                at += 1
            else:
                self._at = at
                return byte
        self._at = end
        return -1

    def _found(self) -> str:
        return repr(chr(self._data[self._at])) if self._at < len(self._data) else "the end"

    def _take(self, allowed: frozenset[int]) -> bytes:
        data, start, at = self._data, self._at, self._at
        while at < len(data) and data[at] in allowed:
            at += 1
        self._at = at
        return data[start:at]

    def accept(self, character: str) -> bool:
        if self._peek() == ord(character):
            self._at += 1
            return True
        return False

    def expect(self, character: str) -> None:
        if not self.accept(character):
            raise WireError(f"{character!r} expected at character {self._at}, found {self._found()}")

    def open_message(self) -> str:
        """Enter a message, and return the argument for :meth:`close_message`; empty if no brace follows."""
        closer = _CLOSERS.get(self._peek())
        if closer is None:
            return ""
        self._at += 1
        return chr(closer)

    def close_message(self, closer: str) -> None:
        if closer:
            self.expect(closer)

    def at_end_of_message(self) -> bool:
        return self._peek() in (-1, 0x7D, 0x3E)

    def end_field(self) -> None:
        if self._peek() in (0x2C, 0x3B):
            self._at += 1

    def separator(self) -> None:
        """Read the separator between a field's name and its value."""
        if self._peek() not in _CLOSERS:
            self.expect(":")

    def identifier(self) -> str:
        if self._peek() not in _LETTERS:
            raise WireError(f"a name expected at character {self._at}, found {self._found()}")
        return self._take(_LETTERS | _DIGITS).decode("ascii")

    def integer(self) -> int:
        """Read a signed 64-bit integer: decimal, hexadecimal after ``0x``, or octal after ``0``."""
        self._peek()
        start = self._at
        token = (self._take(_IN_NUMBERS) + self._take(_SUFFIXES)).decode("ascii")
        digits = token.rstrip("uUlL")
        negative = digits.startswith("-")
        if digits[:1] in ("-", "+"):
            digits = digits[1:]
        base = 10
        if digits[:2] in ("0x", "0X"):
            digits, base = digits[2:], 16
        elif len(digits) > 1 and digits[0] == "0" and _OCTAL.issuperset(digits.encode("ascii")):
            base = 8
        if not digits or not digits.isalnum() or digits[:2] in ("0x", "0X"):
            raise WireError(f"a number expected at character {start}, found {repr(token) if token else self._found()}")
        try:
            number = int(digits, base)
        except ValueError:
            raise WireError(f"a number expected at character {start}, found {token!r}") from None
        if number >> 64:
            raise WireError(f"the number at character {start} does not fit in 64 bits")
        return int64((-number if negative else number) & _MASK64)

    def string(self) -> bytes:
        """Read one string literal, or several adjacent ones."""
        out = bytearray()
        self._literal(out)
        while self._peek() in (0x22, 0x27):
            self._literal(out)
        return bytes(out)

    def strings(self) -> list[bytes]:
        """Read the values of a repeated string field: one literal, or a list in brackets."""
        if not self.accept("["):
            return [self.string()]
        values: list[bytes] = []
        if self.accept("]"):
            return values
        values.append(self.string())
        while self.accept(","):
            values.append(self.string())
        self.expect("]")
        return values

    def _literal(self, out: bytearray) -> None:
        quote = self._peek()
        if quote not in (0x22, 0x27):
            raise WireError(f"a string expected at character {self._at}, found {self._found()}")
        start = self._at
        self._at += 1
        data = self._data
        while self._at < len(data):
            byte = data[self._at]
            self._at += 1
            if byte == quote:
                return
            if byte == 0x5C:
                self._escape(out)
            else:
                out.append(byte)
        raise WireError(f"the string at character {start} is not terminated")

    def _escape(self, out: bytearray) -> None:
        start = self._at
        letter = self._data[start] if start < len(self._data) else -1
        self._at += 1
        if letter in _SIMPLE_ESCAPES:
            out.append(_SIMPLE_ESCAPES[letter])
            return
        if letter in _OCTAL:
            digits = self._digits(start, 3, _OCTAL)
            out.append(int(digits, 8) & 0xFF)
            return
        if letter in (0x58, 0x78):
            digits = self._digits(start + 1, 2, _HEX)
            if digits:
                out.append(int(digits, 16))
                return
        if letter in (0x55, 0x75):
            width = 4 if letter == 0x75 else 8
            digits = self._digits(start + 1, width, _HEX)
            if len(digits) == width and int(digits, 16) <= 0x10FFFF and not 0xD800 <= int(digits, 16) <= 0xDFFF:
                out += chr(int(digits, 16)).encode("utf-8")
                return
        raise WireError(f"the escape sequence at character {start - 1} is invalid")

    def _digits(self, start: int, max_digits: int, allowed: frozenset[int]) -> bytes:
        end = start
        while end < min(start + max_digits, len(self._data)) and self._data[end] in allowed:
            end += 1
        self._at = end
        return self._data[start:end]

    def skip_value(self, depth: int = 0) -> None:
        """Skip the value of an unknown field."""
        if depth > _MAX_DEPTH:
            raise WireError(f"messages nested deeper than {_MAX_DEPTH} at character {self._at}")
        self.accept(":")
        byte = self._peek()
        if byte == -1:
            return
        if byte in _CLOSERS:
            closer = self.open_message()
            while not self.at_end_of_message():
                self.identifier()
                self.skip_value(depth + 1)
                self.end_field()
            self.expect(closer)
        elif byte == 0x5B:
            self.expect("[")
            if not self.accept("]"):
                self.skip_value(depth + 1)
                while self.accept(","):
                    self.skip_value(depth + 1)
                self.expect("]")
        elif byte in (0x22, 0x27):
            self.string()
        elif byte in _LETTERS:
            self.identifier()
        elif byte in _DIGITS or byte in b"+-":
            self._take(_IN_NUMBERS)
            self._take(_SUFFIXES)
        else:
            raise WireError(f"a value expected at character {self._at}, found {self._found()}")

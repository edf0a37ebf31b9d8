r"""Text of jobs, made safe for a terminal.

A script decides what its output, its errors and its metric names contain. A terminal obeys escape sequences in it: they can set
the window's title, move the cursor over earlier lines, write to the clipboard, and some terminals answer them as if the user
had typed. So control characters are shown as escapes (`\x1b`, `\u202e`) before anything is printed.
"""

from __future__ import annotations

import io
import re
from typing import TextIO

__all__ = ["PrintableStream", "printable", "terminal_stream"]

#: SGR sequences: colours and weights, and nothing else. Concealed text (8) is not among them; colours may hide text, too.
_SGR = r"\x1b\[(?P<sgr>[0-9;]{0,32})m"

#: C0 but tab and line feed, delete, C1, marks that change the direction of text, and lone surrogates.
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"

_UNSAFE = re.compile(f"{_SGR}|{_CONTROL}")

_RESET = "\x1b[0m"

#: Parameters of SGR that hide text, or after which some terminals take a colour for concealed text.
_CONCEALS = ("8", "58")

#: Parameters of SGR that name a colour, and how many numbers follow on 5 (a number) or 2 (red, green, blue).
_COLORS, _LENGTHS = ("38", "48"), {"5": 1, "2": 3}


def printable(text: str, *, colors: bool = False) -> str:
    """Return a text whose control characters are spelled out; line feeds and tabs stay.

    Args:
        text: any text.
        colors: keep colours and weights, and end them with the text. Without it they are left out.
    """
    colored = False

    def replaced(match: re.Match[str]) -> str:
        nonlocal colored
        codes = match["sgr"]
        if codes is None:
            return _spelled(match[0])
        keeps = colors and not _conceals(codes)
        colored = colored or keeps
        return match[0] if keeps else ""

    shown = _UNSAFE.sub(replaced, text)
    return shown + _RESET if colored else shown


def _conceals(codes: str) -> bool:
    """Return whether a sequence hides text, or does so on some terminals.

    `38;5;8` and `48;2;8;8;8` name a colour by that number. A terminal that does not know what another number than 5 or 2 means,
    or 58 (the colour of underlines), takes the numbers behind it for sequences of their own.
    """
    parts = [part.lstrip("0") or "0" for part in codes.split(";")]
    while parts:
        code = parts.pop(0)
        if code in _COLORS:
            count = _LENGTHS.get(parts.pop(0) if parts else "", 0)
            values, parts = parts[:count], parts[count:]
            if not count or len(values) < count or not all(_is_byte(value) for value in values):
                return True
        elif code in _CONCEALS:
            return True
    return False


def _is_byte(value: str) -> bool:
    return len(value) <= 3 and int(value) <= 255


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


class PrintableStream(io.TextIOBase):
    """A stream of text that is printed through `printable`; `raw` is the one behind it, for what draws at a terminal itself."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write a text, its control characters spelled out."""
        self.raw.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream behind it."""
        self.raw.flush()

    def fileno(self) -> int:
        """Return the descriptor of the stream behind it."""
        return self.raw.fileno()

    def isatty(self) -> bool:
        """Return whether the stream behind it is a terminal."""
        return self.raw.isatty()

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream behind it."""
        return self.raw.encoding


def terminal_stream(stream: TextIO | PrintableStream) -> TextIO:
    """Return the stream behind `stream` that takes escape sequences as they are."""
    return stream.raw if isinstance(stream, PrintableStream) else stream

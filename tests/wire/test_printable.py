"""What reaches a terminal of what a job has written."""

from __future__ import annotations

import io

import pytest

from rallypoint.wire.printable import PrintableStream, printable, terminal_stream


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("step 3\tloss 0.1\n", "step 3\tloss 0.1\n", id="plain"),
        pytest.param("größe 😀 训练", "größe 😀 训练", id="other scripts"),
        pytest.param("\x1b]0;owned\x07", "\\x1b]0;owned\\x07", id="a window's title"),
        pytest.param("\x1b]52;c;cm0=\x07", "\\x1b]52;c;cm0=\\x07", id="the clipboard"),
        pytest.param("\x1b[2J\x1b[1;1H", "\\x1b[2J\\x1b[1;1H", id="the cursor"),
        pytest.param("\x9b2J", "\\u009b2J", id="C1"),
        pytest.param("a\rb\x08c\x00", "a\\x0db\\x08c\\x00", id="C0"),
        pytest.param("abc\u202edef", "abc\\u202edef", id="right to left"),
        pytest.param("\udc80", "\\udc80", id="a lone surrogate"),
        pytest.param("\x1b[31mred\x1b[0m", "red", id="colours are left out"),
        pytest.param("\x1b[\x1b[31m2J", "\\x1b[2J", id="leaving one out makes no other"),
    ],
)
def test_control_characters_are_spelled_out(text, shown):
    """Each by its number; everything else stays."""
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("\x1b[1;31mred", "\x1b[1;31mred\x1b[0m", id="and they end with the text"),
        pytest.param("\x1b[38;5;8mgrey", "\x1b[38;5;8mgrey\x1b[0m", id="a colour that has the number of concealed"),
        *(
            pytest.param(f"\x1b[{codes}mpassword", "password", id=f"{codes} conceals")
            for codes in (
                "58;5;8",
                "58;2;1;2;8",
                "38;2;8;8",
                "48;8",
                "38;7;8",
                "38",
                "38;5",
                "1;48;2;8",
                "38;5;256",
                "38;5;1;58;5;8",
            )
        ),
        pytest.param("\x1b[48;2;8;8;8mgrey", "\x1b[48;2;8;8;8mgrey\x1b[0m", id="three of them"),
        pytest.param("\x1b[30;40mdark", "\x1b[30;40mdark\x1b[0m", id="black on black, as SECURITY.md says"),
        pytest.param("\x1b[8mhidden", "hidden", id="concealed"),
        pytest.param("\x1b[31;08mhidden", "hidden", id="concealed and red"),
        pytest.param("\x1b[31m\x1b[2J", "\x1b[31m\\x1b[2J\x1b[0m", id="nothing but colours"),
        pytest.param("plain", "plain", id="no colours"),
    ],
)
def test_colours_can_stay(text, shown):
    """Where a person looks at a screen."""
    assert printable(text, colors=True) == shown


def test_a_stream_prints_so():
    """What draws at the terminal itself finds the stream behind it."""
    raw = io.StringIO()
    stream = PrintableStream(raw)
    print("a\x1b[2Jb", file=stream)

    assert raw.getvalue() == "a\\x1b[2Jb\n"
    assert terminal_stream(stream) is raw
    assert terminal_stream(raw) is raw

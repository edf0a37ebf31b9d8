"""Stacks as faulthandler writes them, to a few frames that people read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rallypoint.wire.hang import FRAMES

__all__ = ["complete", "few", "main_frames", "short"]

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-fA-F]+.*:$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<path>.*)", line (?P<line>\d+|\?\?\?)(?: in (?P<name>.*))?$', re.MULTILINE)

#: What stands before a path that says where a frame is: everybody's packages; and the standard library, which is told as such.
_PACKAGES, _LIBRARY = re.compile(r"^.*/(?:site-packages|dist-packages)/"), re.compile(r"^.*/lib/python3\.\d+/")

#: What our own start-up module wraps is told, and it is not; nor is what has forked a worker, or runs a module as a program.
_OURS = re.compile(r"/rallypoint/(training/startup|agent/workers)/|^<frozen runpy>")

#: Characters of one frame; a path that is longer says little more.
_FRAME_CHARS = 120


def complete(text: str) -> bool:
    """Return whether all threads are there: the one that was interrupted is the main one, which stands last."""
    current = [match.end() for match in _THREAD.finditer(text) if match[1].startswith("Current")]
    return bool(current) and _FRAME.search(text, current[-1]) is not None and text.endswith("\n")


def main_frames(text: str, most: int = FRAMES) -> tuple[str, ...]:
    """Return the frames of the interrupted thread in the last dump of `text`, the innermost first, `most` of them at the most.

    Where there are more, the innermost and the outermost are told: where it stands, and from where it was called.
    """
    threads = list(_THREAD.finditer(text))
    current = [match for match in threads if match[1].startswith("Current")]
    if not current:
        return ()
    begin = current[-1].end()
    end = next((match.start() for match in threads if match.start() > begin), len(text))
    return few(tuple(_frames(text[begin:end])), most)


def _frames(block: str) -> Iterator[str]:
    for match in _FRAME.finditer(block):
        if _OURS.search(match["path"]):
            continue
        name = f" {match['name']}" if match["name"] else ""
        yield f"{short(match['path'])}:{match['line']}{name}"[:_FRAME_CHARS]


def short(path: str) -> str:
    """Return a path of a package from that package on, one of the library behind `python/`, any other by its name alone."""
    inside = _PACKAGES.sub("", path)
    if inside == path:
        inside = _LIBRARY.sub("python/", path)
    return inside if inside != path else path.rpartition("/")[2]


def few(frames: Sequence[str], most: int = FRAMES) -> tuple[str, ...]:
    """Return the innermost and the outermost frames, `most` of them at the most, with one in between for those left out."""
    if len(frames) <= most:
        return tuple(frames)
    first = most - most // 3
    last = most - first - 1
    return (*frames[:first], f"... {len(frames) - first - last} more ...", *frames[len(frames) - last :])

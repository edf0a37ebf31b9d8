"""Split a launcher's command line at the script, as torchrun means it: what follows the script is never ours.

argparse interprets every word of the line before it assigns the first one, so an argument of the script that looks like one of
our flags, or like the beginning of two of them, could end the run. Here the line is read word by word instead.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rallypoint.usage import UsageParser

__all__ = ["RunParser"]

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


class RunParser(UsageParser):
    """Parse flags up to the script; the rest of the line is the script's.

    Attributes:
        takes_script: whether there is a script at all; without it this is an ordinary parser.
        extra_flags: names (`dest`) of flags that torchrun lacks. They never make an abbreviation of torchrun's ambiguous.
        variables: environment variable that gave a flag its default, by the flag's name.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.takes_script = False
        self.extra_flags: frozenset[str] = frozenset()
        self.variables: dict[str, str] = {}

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse; in the result `given` names the flags that the line or a variable sets, `variables` has those variables."""
        words = list(sys.argv[1:] if args is None else args)
        if not self.takes_script:
            return super().parse_known_args(words, namespace)
        flags, given, script = self._split(words)
        found, unknown = super().parse_known_args(flags, namespace)
        if not script:
            self.error("the following arguments are required: training_script")
        found.training_script, *found.training_script_args = script
        found.variables = {name: variable for name, variable in self.variables.items() if name not in given}
        found.given = frozenset(given | found.variables.keys())
        return found, unknown

    def _split(self, words: list[str]) -> tuple[list[str], set[str], list[str]]:
        """Return the flags spelled out, the names of those flags, and the script with its arguments."""
        flags: list[str] = []
        given: set[str] = set()
        while words:
            word = words.pop(0)
            if word == "--":
                return flags, given, words
            if not _looks_like_a_flag(word):
                return flags, given, [word, *words]
            spelled, value = self._spelled_out(word)
            last = spelled[-1]
            flags += [_name(action) for action in spelled[:-1]]
            if last.nargs != 0 and value is None:
                if not words or _looks_like_a_flag(words[0]):
                    self.error(f"argument {'/'.join(last.option_strings)}: expected one argument")
                value = words.pop(0)
            name = _name(last)
            flags += [name] if value is None else [f"{name}={value}"]
            given |= {action.dest for action in spelled}
        return flags, given, []

    def _spelled_out(self, word: str) -> tuple[list[argparse.Action], str | None]:
        """Return the flags that a word stands for, and the value in it; only the last of them may take one."""
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            return [self._meant(name)], value if equals else None
        return self._cluster(word)

    def _meant(self, name: str) -> argparse.Action:
        """Return the flag of a name or of the unique beginning of one."""
        known: Mapping[str, argparse.Action] = self._option_string_actions
        if name in known:
            return known[name]
        matches = {spelling: action for spelling, action in known.items() if spelling.startswith(name)}
        theirs = {id(action): action for action in matches.values() if action.dest not in self.extra_flags}
        meant = theirs if len(theirs) == 1 else {id(action): action for action in matches.values()}
        if not meant:
            self.error(f"unrecognized arguments: {name}")
        if len(meant) > 1:
            self.error(f"ambiguous option: {name} could match {', '.join(map(_name, meant.values()))}")
        return next(iter(meant.values()))

    def _cluster(self, word: str) -> tuple[list[argparse.Action], str | None]:
        """As `_spelled_out` for short flags, several of which may stand together: `-mr3` is `-m -r 3`."""
        found: list[argparse.Action] = []
        for at, letter in enumerate(word[1:], start=1):
            action = self._option_string_actions.get(f"-{letter}")
            if action is None:
                self.error(f"unrecognized arguments: {word}")
            found.append(action)
            if action.nargs != 0:
                rest = word[at + 1 :]
                return found, rest.removeprefix("=") if rest else None
        return found, None


def _looks_like_a_flag(word: str) -> bool:
    """Return whether argparse takes a word for a flag: negative numbers and whatever has a space are values."""
    return len(word) > 1 and word[0] == "-" and not _NUMBER.fullmatch(word) and " " not in word.partition("=")[0]


def _name(action: argparse.Action) -> str:
    """Return the long spelling of a flag, with hyphens."""
    return max(action.option_strings, key=lambda name: (name.startswith("--"), "_" not in name))

"""Parse command lines; a wrong one is one sentence and a hint, not a screen of usage."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, NoReturn

__all__ = ["ADVANCED_OPTIONS", "COMPATIBILITY_OPTIONS", "KUBERNETES_OPTIONS", "RAY_OPTIONS", "HelpFormat", "UsageParser"]

#: Titles of the groups of options, in the order in which --help shows them. Others are common options.
KUBERNETES_OPTIONS = "Kubernetes options"

#: Heading of options that only the Ray backend reads.
RAY_OPTIONS = "Ray options"
ADVANCED_OPTIONS = "advanced options"
COMPATIBILITY_OPTIONS = "compatibility options"

_COMMON = "common options"

#: Exit code of a wrong command line, as of every argparse program.
_EXIT = 2


class HelpFormat(argparse.RawDescriptionHelpFormatter):
    """Help with descriptions as written, and with one spelling of each option."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def start_section(self, heading: str | None) -> None:
        """Start a section; the titles of argparse's own groups are replaced."""
        super().start_section({"options": _COMMON, "positional arguments": "arguments"}.get(heading or "", heading))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [name for name in action.option_strings if not name.startswith("--") or "_" not in name]
        if not names:
            return super()._format_action_invocation(action)
        value = "" if action.nargs == 0 else f" {self._format_args(action, action.dest.upper())}"
        return ", ".join(names) + value


class UsageParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors start with what is wrong; subparsers report their own unknown options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._titled = {
            title: self.add_argument_group(title)
            for title in (KUBERNETES_OPTIONS, RAY_OPTIONS, ADVANCED_OPTIONS, COMPATIBILITY_OPTIONS)
        }

    def group(self, title: str) -> Any:
        """Return the group of options with this title, one of the constants of this module."""
        return self._titled[title]

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse; unknown options are an error of the command they were given to, so its own help is recommended."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the sentence and where to read more; exit with 2."""
        self.exit(_EXIT, f"{self.prog}: error: {message}\ntry '{self.prog} --help'\n")

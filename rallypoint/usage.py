"""Parse command lines; a wrong one is one sentence and a hint, not a screen of usage."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, NoReturn

__all__ = ["UsageParser"]

#: Exit code of a wrong command line, as of every argparse program.
_EXIT = 2


class UsageParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors start with what is wrong; subparsers report their own unknown options."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse; unknown options are an error of the command they were given to, so its own help is recommended."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the sentence and where to read more; exit with 2."""
        self.exit(_EXIT, f"{self.prog}: error: {message}\ntry '{self.prog} --help'\n")

"""A command line of torchrun, dlrover-run or `rallypoint-agent run` as fields of a job. Pure.

Each flag of the launcher is in one of three tables: it has a field, it has no effect in a job, or it is refused.
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from rallypoint.job.arguments import ARGUMENTS, Field, field_rule
from rallypoint.job.errors import JobError, Problem, show
from rallypoint.job.values import RefusedError

__all__ = ["FIELDS", "NO_EFFECT", "NO_FIELD", "SWITCHES", "Command", "read_command"]

_PATH = "command"

#: Flags with a field of their own; every argument of `ARGUMENTS` is a flag, too.
FIELDS: Mapping[str, Field] = {
    "start_method": ("recovery", "start_method"),
    "standby": ("recovery", "standby"),
    "replica_every": ("recovery", "replica_every"),
    "replica_limit": ("recovery", "replica_limit"),
    "monitor_interval": ("health", "report_interval"),
    "shutdown_timeout": ("recovery", "stop_grace_period"),
    "exit_grace": ("recovery", "exit_grace_period"),
    "numa_binding": ("roles", "numa_affinity"),
    "node_check": ("health", "network_check"),
}
#: Flags with special readers.
_OWN = frozenset(
    {"nproc_per_node", "preload", "redirects", "tee", "role", "module", "no_python", "network_check", "max_restarts"}
)
#: Rendezvous flags, which have no effect in a job.
NO_EFFECT = frozenset(
    {"node_rank", "master_addr", "master_port", "local_addr", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "standalone"}
    | {"secret_file", "insecure_token", "event_log_handler"}
)
#: Flags without a field in a job, which are errors.
NO_FIELD = frozenset(
    {"tls", "signals_to_handle", "virtual_local_rank", "local_ranks_filter", "run_path"}
    | {"duplicate_stdout_filters", "duplicate_stderr_filters"}
)
SWITCHES = frozenset(
    {"standalone", "insecure_token", "module", "no_python", "run_path", "virtual_local_rank", "node_check"}
    | {name for name, argument in ARGUMENTS.items() if argument.switch}
)
_SHORT = {"m": "module", "r": "redirects", "t": "tee"}
_STREAMS = {"0": "none", "1": "stdout", "2": "stderr", "3": "both"}
_LAUNCHERS = ("torchrun", "dlrover-run")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_LAUNCHER_ALLOWED = "torchrun, dlrover-run, rallypoint-agent run or python -m torch.distributed.run, followed by a script"


@dataclass(frozen=True, kw_only=True)
class Command:
    """Fields of a job that a command line sets.

    Attributes:
        role: fields of the role, entrypoint and arguments included.
        job: fields of the job's blocks, by block.
        name: of the role; "" where the line names none.
    """

    role: dict[str, Any]
    job: dict[str, dict[str, Any]] = field(default_factory=dict)
    name: str = ""


def read_command(text: str) -> Command:
    """Read a command line; raises `JobError` with all problems, and warns about flags without effect."""
    try:
        words = shlex.split(text)
    except (ValueError, AttributeError) as error:
        raise JobError([Problem(path=_PATH, text=f"{show(text)} is not allowed; expected balanced quotes ({error})")]) from None
    line = _after_launcher(words)
    if line is None:
        raise JobError([Problem(path=_PATH, text=f"{show(text)} is not allowed; expected {_LAUNCHER_ALLOWED}")])
    flags, script, wrong = _split(line)
    if not script:
        wrong.append(Problem(path=_PATH, text=f"{show(text)} names no script; expected {_LAUNCHER_ALLOWED}"))
    reader = _Reader(flags)
    wrong += reader.read()
    if wrong:
        raise JobError(wrong)
    ignored = sorted(name for name in flags if name in NO_EFFECT)
    if ignored:
        told = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        warnings.warn(f"{told}: no effect; a job arranges its own rendezvous", UserWarning, stacklevel=3)
    return Command(role={**_entry(flags, script), **reader.role}, job=reader.job, name=flags.get("role", "").lower())


def _after_launcher(words: list[str]) -> list[str] | None:
    """Return the words after the launcher; None without a launcher."""
    names = [PurePosixPath(word).name for word in words[:1]]
    if names and names[0] in _LAUNCHERS:
        return words[1:]
    if names == ["rallypoint-agent"] and words[1:2] == ["run"]:
        return words[2:]
    if names and re.fullmatch(r"python[\d.]*", names[0]):
        rest = [word for word in words[1:3] if word != "-u"]
        at = 1 + (words[1:2] == ["-u"])
        if words[at : at + 1] == ["-m"] and words[at + 1 : at + 2] and words[at + 1] in _MODULES:
            return words[at + 2 :]
        if rest and words[at : at + 3] == ["-m", "rallypoint.agent", "run"]:
            return words[at + 3 :]
    return None


def _split(words: list[str]) -> tuple[dict[str, str], list[str], list[Problem]]:
    """Return the flags up to the script by name, the script with its arguments, and unknown flags as problems."""
    flags: dict[str, str] = {}
    wrong: list[Problem] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return flags, left, wrong
        if not word.startswith("-") or word == "-" or _NUMBER.fullmatch(word):
            return flags, [word, *left], wrong
        name, value = _flag(word)
        if name not in _known():
            wrong.append(Problem(path=f"{_PATH} {word.partition('=')[0]}", text=f"is not a known flag{_hint(name)}"))
            if "=" not in word:
                return flags, left or [word], wrong  # whether it has a value is not known, nor where the script is
            continue
        if name in SWITCHES:
            flags[name] = value or "true"
        elif value is not None:
            flags[name] = value
        elif left:
            flags[name] = left.pop(0)
        else:
            wrong.append(Problem(path=f"{_PATH} {word}", text="has no value; expected a value after the flag"))
    return flags, [], wrong


def _flag(word: str) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    if word.startswith("--"):
        return _meant(name[2:].replace("-", "_")), value if equals else None
    short = _SHORT.get(word[1:2], word[1:])
    return short, word[2:].removeprefix("=") or None


def _meant(name: str) -> str:
    """Return the flag for a name or a unique prefix."""
    if name in _known():
        return name
    found = [known for known in _known() if known.startswith(name)]
    return found[0] if len(found) == 1 else name


def _known() -> tuple[str, ...]:
    return (*(name for name, argument in ARGUMENTS.items() if argument.of_run), *FIELDS, *_OWN, *NO_EFFECT, *NO_FIELD)


def _hint(name: str) -> str:
    import difflib  # noqa: PLC0415  only errors need it

    near = difflib.get_close_matches(name, _known(), n=1)
    return f"; did you mean --{near[0].replace('_', '-')}?" if near else ""


def _entry(flags: Mapping[str, str], script: list[str]) -> dict[str, Any]:
    first, *rest = script
    if "no_python" in flags:
        return {"entrypoint": [first, *rest]}
    entry: Any = {"module": first} if "module" in flags else {"script": first}
    if "module" in flags:
        entry = f"-m {first}"
    elif not re.search(r"\s", first):
        entry = first
    return {"entrypoint": entry, **({"args": rest} if rest else {})}


class _Reader:
    """Reads flags into fields of a role and of a job."""

    def __init__(self, flags: Mapping[str, str]) -> None:
        self._flags = flags
        self.role: dict[str, Any] = {}
        self.job: dict[str, dict[str, Any]] = {}

    def read(self) -> list[Problem]:
        """Read all; return what is wrong."""
        return [problem for name, value in self._flags.items() for problem in self._one(name, value)]

    def _one(self, name: str, value: str) -> Iterator[Problem]:
        path = f"{_PATH} --{name.replace('_', '-')}"
        try:
            self._put(self._fields(name, value))
        except RefusedError as error:
            allowed = str(error)
            yield Problem(path=path, text=f"{show(value)} is not allowed; expected {allowed}")

    def _put(self, fields: Mapping[Field, Any]) -> None:
        for (block, key), value in fields.items():
            if block == "roles":
                self.role[key] = value
            else:
                self.job.setdefault(block, {})[key] = value

    def _fields(self, name: str, value: str) -> Mapping[Field, Any]:
        if name in NO_FIELD:
            raise RefusedError("a command without this flag, because a job has no field for the flag")
        if name in NO_EFFECT or name in {"role", "module", "no_python"}:
            return {}
        if name == "nproc_per_node":
            return _workers(value)
        if name in {"redirects", "tee"}:
            return {("logs", name): _stream(value)}
        if name == "preload":
            return {("recovery", name): [word.strip() for word in value.split(",") if word.strip()]}
        if name in FIELDS:
            return {FIELDS[name]: _read(FIELDS[name], value)}
        if name == "max_restarts":
            return {("recovery", name): _read(("recovery", name), value)}
        argument = ARGUMENTS[name]
        try:
            return argument.read({"1": "true", "0": "false"}.get(value, value) if argument.switch else value)
        except RefusedError as error:
            raise RefusedError(str(error) or argument.rule.allowed) from None


def _read(at: Field, value: str) -> Any:
    rule = field_rule(at)
    try:
        return rule.write(rule.read(value))
    except RefusedError as error:
        raise RefusedError(str(error) or rule.allowed) from None


def _workers(value: str) -> Mapping[Field, Any]:
    if value in {"gpu", "auto"}:
        return {("roles", "auto_config"): True}
    if value == "cpu":
        return {("roles", "auto_config"): True, ("roles", "accelerator"): "cpu"}
    if not re.fullmatch(r"[1-9]\d{0,5}", value, re.ASCII):
        raise RefusedError("a whole number of 1 or more, gpu, auto or cpu")
    return {("roles", "nproc_per_node"): int(value)}


def _stream(value: str) -> str:
    if value not in _STREAMS:
        raise RefusedError(
            "0 (none), 1 (stdout), 2 (stderr) or 3 (both) for all ranks; a job cannot set this for a single rank"
        )
    return _STREAMS[value]

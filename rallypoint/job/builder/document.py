"""Convert the values of a builder to a job document: compute counts, name roles, collect problems with paths. Pure."""

from __future__ import annotations

import contextlib
import difflib
import importlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from rallypoint.job.builder.calls import JobCalls, RoleCalls
from rallypoint.job.builder.entry import read_entry
from rallypoint.job.errors import JobError, Problem, show
from rallypoint.job.rules import NAME, SHARE, Rule, whole
from rallypoint.job.values import RefusedError, read_whole

__all__ = ["UNNAMED", "draft"]

#: The name of an elastic role that has none, in a job with others.
UNNAMED = "elastic"

_COUNT = whole(1, 999_999)
_TOTAL = whole(0, 999_999)
_DEVICE_TYPES = {"gpu": "gpu", "cpu": "cpu"}

#: DLRover's words, by the one that is used here.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "memory": ("memory", "mem"),
    "disk": ("disk",),
    "gpu": ("accelerator", "acc", "gpu"),
    "user_defined": ("user_defined", "ud_resource"),
}

_FIELDS = {"cpu": "cpu", "memory": "memory", "disk": "disk", "gpu": "gpus", "user_defined": "user_defined"}

_KNOWN = {name: ours for ours, names in _NAMES.items() for name in names}


def draft(calls: JobCalls) -> tuple[dict[str, Any], list[Problem]]:
    """Return the document of a job without a name, and the problems that are not visible in the document."""
    writer = _Writer(calls)
    return writer.document(), writer.wrong


class _Writer:
    def __init__(self, calls: JobCalls) -> None:
        self._calls = calls
        self.wrong: list[Problem] = list(calls.wrong)
        self._short = len(calls.roles) == 1 and calls.roles[0].written is None

    def document(self) -> dict[str, Any]:
        """Return the document without invalid values; their problems are in `wrong`."""
        calls = self._calls
        roles = dict(self._roles())
        if not calls.roles:
            self._refuse("roles", "is missing; expected at least one role: call train(), run() or workload()")
        self._check_names(list(roles))
        groups = list(self._groups(list(roles)))
        cluster = self._cluster()
        blocks = self._blocks()
        config = self._config()
        return {
            **({"config": config} if config else {}),
            **(next(iter(roles.values())) if self._short else {"roles": roles}),
            "cluster": cluster,
            **({"groups": groups} if groups else {}),
            **blocks,
        }

    def _refuse(self, path: str, text: str) -> None:
        self.wrong.append(Problem(path=path, text=text))

    def _checked(self, rule: Rule, value: Any, path: str) -> Any:
        """Return a value that its rule allows, or None."""
        if value is None:
            return None
        with contextlib.suppress(RefusedError):
            if not isinstance(value, str):  # a text is no number in a call, as it is in a file
                return rule.read(value)
        self._refuse(path, f"{show(value)} is not allowed; expected {rule.allowed}")
        return None

    def _check_names(self, names: list[str]) -> None:
        calls = self._calls
        for name in calls.required:
            if name not in names:
                self._refuse(f"roles.{name}", "is missing; a job of this builder must have it")
        for name in names:
            if calls.allowed and name not in calls.allowed:
                self._refuse(f"roles.{name}", f"is not a role of this builder; expected one of {', '.join(calls.allowed)}")

    # --- the job ---

    def _config(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for config in self._calls.configs:
            try:
                merged |= _plain(config)
            except JobError as error:
                self.wrong += error.problems
        return merged

    def _cluster(self) -> dict[str, Any]:
        calls = self._calls
        commands = [role.command for role in calls.roles if role.command is not None]
        found = {}
        nodes, devices = calls.nodes, calls.devices
        if commands and nodes is None:
            nodes = int(str(commands[0].role.get("nodes", 1)).rpartition(":")[2])
        if commands and devices is None:
            devices = None if "auto_config" in commands[0].role else commands[0].role.get("nproc_per_node", 1)
        elif devices is None:
            devices = 8
        found["nodes"] = self._checked(_COUNT, 1 if nodes is None else nodes, "node_num")
        found["devices_per_node"] = self._checked(_COUNT, devices, "device_per_node")
        kind = "gpu" if calls.kind is None else str(calls.kind).lower()
        if kind not in _DEVICE_TYPES:
            self._refuse("device_type", f"{show(calls.kind)} is not allowed; expected one of GPU, CPU")
        found["device_type"] = _DEVICE_TYPES.get(kind)
        return {name: value for name, value in found.items() if value is not None}

    def _blocks(self) -> dict[str, Any]:
        blocks: dict[str, dict[str, Any]] = {}
        for role in self._calls.roles:
            for name, block in (role.command.job if role.command else {}).items():
                blocks.setdefault(name, {}).update(block)
        if not self._calls.node_check:
            for name in ("network_check", "comm_perf_test", "precheck", "exclude_straggler"):
                blocks.get("health", {}).pop(name, None)
        return {name: block for name, block in blocks.items() if block}

    def _groups(self, names: list[str]) -> Iterator[dict[str, Any]]:
        calls = self._calls
        listed = [[str(name).lower() for name in roles] for roles in calls.collocations]
        for exclude in calls.collocate_all:
            for name in exclude:
                if str(name).lower() not in names:
                    told = f"role {show(name)} is not defined; expected names of roles of the job ({', '.join(names)})"
                    self._refuse("with_collocation_all", told)
            without = {str(name).lower() for name in (*exclude, *calls.never_collocated)}
            listed.append([name for name in names if name not in without])
        for index, roles in enumerate(listed):
            name = "-".join(roles)
            allowed = len(name) <= 52 and self._is_name(name)
            yield {"name": name if allowed else f"group-{index}", "roles": roles}

    def _is_name(self, name: str) -> bool:
        try:
            return bool(NAME.read(name))
        except RefusedError:
            return False

    # --- roles ---

    def _roles(self) -> Iterator[tuple[str, dict[str, Any]]]:
        first: dict[str, RoleCalls] = {}
        for role in self._calls.roles:
            name = role.name or UNNAMED
            if name in first:
                same = first[name].written == role.written
                other = "" if same else f" as {first[name].written or UNNAMED!r}; names are compared in lower case"
                self._refuse(f"roles.{name}", f"is already defined{other}; give each role a name of its own")
                continue
            first[name] = role
            yield name, self._role(role, "" if self._short else f"roles.{name}.")

    def _role(self, role: RoleCalls, path: str) -> dict[str, Any]:
        self.wrong += [Problem(path=f"{path}{problem.path}", text=problem.text) for problem in role.wrong]
        if role.written is not None and not isinstance(role.written, str):
            self._refuse(f"{path}name", f"{show(role.written)} is not allowed; expected {NAME.allowed}")
        found: dict[str, Any] = {} if role.elastic else {"launch": "simple"}
        found |= dict(role.command.role) if role.command else self._entry(role, path)
        found |= self._training(role, path) if role.elastic else self._instances(role, path)
        env = {**self._calls.env, **role.env}
        env = {key: value for key, value in env.items() if value is not None}
        if env:
            found["env"] = env
        if not role.driver:
            found["driver"] = False
        if role.failover is not None:
            label, timeout = role.failover
            found["node_group_failover"] = {"label": label, "timeout": timeout}
        needs = self._needs(role, path)
        return {**found, **({"instance_resources": needs} if needs else {})}

    def _entry(self, role: RoleCalls, path: str) -> dict[str, Any]:
        try:
            entry = read_entry(role.entry)
        except RefusedError as error:
            allowed = str(error)
            self._refuse(f"{path}entrypoint", f"{show(role.entry)} is not allowed; expected {allowed}")
            return {"entrypoint": ["true"]}  # stands for it, so that the rest is checked
        function = ":" in str(entry["entrypoint"])
        return {**entry, **({"process_group": False} if function and role.elastic and not self._calls.process_group else {})}

    def _needs(self, role: RoleCalls, path: str) -> dict[str, Any]:
        needs, wrong = _read_needs(role.needs)
        for key, text in wrong:
            self._refuse(f"{path}resource.{key}", text)
        auto = role.command is not None and "auto_config" in role.command.role
        if role.needs or auto or self._is_grouped(role):
            return needs
        return {"gpus": 1}

    def _is_grouped(self, role: RoleCalls) -> bool:
        name, calls = role.name or UNNAMED, self._calls
        if any(name in {str(other).lower() for other in roles} for roles in calls.collocations):
            return True
        return any(
            name not in {str(other).lower() for other in (*exclude, *calls.never_collocated)} for exclude in calls.collocate_all
        )

    def _instances(self, role: RoleCalls, path: str) -> dict[str, Any]:
        group = self._checked(_COUNT, role.per_group, f"{path}per_group")
        total = self._checked(_TOTAL, role.total, f"{path}total")
        return {"total": group or 1 if total is None else total, "per_group": group or 1}

    def _training(self, role: RoleCalls, path: str) -> dict[str, Any]:
        """Solve total, nnodes, nproc_per_node and per_group together; a contradiction names all that were given."""
        written = role.command.role if role.command else {}
        before = len(self.wrong)
        workers = self._checked(_COUNT, role.workers, f"{path}nproc_per_node")
        group = self._checked(_COUNT, role.per_group, f"{path}per_group")
        total = self._checked(_TOTAL, role.total, f"{path}total")
        least = self._checked(_COUNT, role.least, f"{path}nnodes")
        most = self._checked(_COUNT, role.most, f"{path}nnodes")
        if len(self.wrong) > before:
            return {}
        given = {"total": total, "nnodes": least, "nproc_per_node": workers, "per_group": group}
        told = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        if workers and group and workers != group:
            self._refuse(f"{path}per_group", f"{told} are not allowed together; expected equal nproc_per_node and per_group")
            return {}
        size = workers or group or written.get("nproc_per_node") or _workers_of(total, least, most)
        if total == 0:
            return {"total": 0, "nproc_per_node": size}
        if most is not None and least is not None and most < least:
            self._refuse(f"{path}nnodes", f"{least}, {most} is not allowed; expected MIN <= MAX")
            return {}
        nodes: Any = written.get("nodes", 1) if least is None else least if most is None else f"{least}:{most}"
        if total is not None:
            if total % size or (least is not None and (most not in {None, least} or total != least * size)):
                self._refuse(f"{path}total", f"{told} are not allowed together; expected total = nnodes x {size}")
                return {}
            nodes = total // size
        return {"nodes": nodes, "nproc_per_node": size}


def _workers_of(total: int | None, least: int | None, most: int | None) -> int:
    """Return the workers of a node where only the total and the number of nodes are given."""
    if not total or least is None or most not in {None, least} or total % least:
        return 1
    return total // least


def _plain(value: Any) -> dict[str, Any]:
    """Return settings as plain values; raises `JobError` for other types and for interpolations without a value."""
    if value is None:
        return {}
    if isinstance(value, Namespace):
        return dict(vars(value))
    if type(value).__module__.partition(".")[0] == "omegaconf":
        library = importlib.import_module("omegaconf")
        try:
            value = library.OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        except library.errors.OmegaConfBaseException as error:
            told = str(error).strip().splitlines()[0]
            raise JobError([Problem(path="config", text=f"OmegaConf cannot resolve this value: {told}")]) from error
    if isinstance(value, Mapping):
        return dict(value)
    allowed = "a dict, a DictConfig or an argparse.Namespace"
    raise JobError([Problem(path="config", text=f"{show(value)} is not allowed; expected {allowed}")])


def _read_needs(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the fields of `instance_resources`, and problems as (key, text); memory and disk are in MiB."""
    found: dict[str, Any] = {}
    said: dict[str, tuple[str, Any]] = {}
    wrong: list[tuple[str, str]] = []
    for key, value in given.items():
        ours = _KNOWN.get(key)
        if ours is None:
            wrong.append((key, f"is not a known resource{_hint(key)}"))
        elif ours in said and said[ours][1] != value:
            other, known = said[ours]
            told = f"expected the value of {other} ({known}), which is the same resource, or no value"
            wrong.append((key, f"{show(value)} is not allowed; {told}"))
        else:
            said[ours] = (key, value)
            wrong += [(key, text) for text in _put(found, ours, value)]
    return found, wrong


def _hint(key: str) -> str:
    near = difflib.get_close_matches(key, _KNOWN, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(_KNOWN)}"


def _put(found: dict[str, Any], ours: str, value: Any) -> Iterator[str]:
    field = _FIELDS[ours]
    if ours in {"memory", "disk"}:
        try:
            found[field] = f"{_natural(value)}Mi"
        except RefusedError:
            yield f"{show(value)} is not allowed; expected a whole number of MiB, 0 or more"
    elif ours == "gpu":
        try:
            found[field] = SHARE.write(SHARE.read(value))
        except RefusedError:
            yield f"{show(value)} is not allowed; expected {SHARE.allowed}"
    else:
        found[field] = value  # the field of the job has the rule


def _natural(value: Any) -> int:
    number = read_whole(value)
    if number < 0:
        raise RefusedError
    return number

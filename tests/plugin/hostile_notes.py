"""What a task, or an editor of connections, can write to have the API server act for them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import build

__all__ = ["ATTACKS", "SECRET", "Planted", "connections", "kubeconfig", "plant", "secret_file", "witness"]

#: What is in a file that the API server can read and a task cannot.
SECRET = "canary-jwt-secret-5d1f"

#: A job of a hostile task.
JOB = "planted"


@dataclass(frozen=True)
class Planted:
    """A note in the task's state store, and a page as an XCom."""

    note: Mapping[str, Any]
    page: Any = None


def witness(folder: Path) -> Path:
    """Return the file that an exec plug-in creates when it runs."""
    return folder / "plug-in-ran"


def secret_file(folder: Path) -> Path:
    """Return the file that holds the secret."""
    return folder / "secret" / "rank-0.err"


def kubeconfig(folder: Path) -> dict[str, Any]:
    """Return a kubeconfig whose exec plug-in creates the witness."""
    run = ["-c", f"import pathlib; pathlib.Path({str(witness(folder))!r}).touch()"]
    version = "client.authentication.k8s.io/v1"
    plug_in = {"apiVersion": version, "command": sys.executable, "args": run, "interactiveMode": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "default"}}],
        "users": [{"name": "a", "user": {"exec": plug_in}}],
    }


def connections(folder: Path) -> dict[str, dict[str, Any]]:
    """Return connections as an editor of connections may leave them; `allowed` is one that the administrator has allowed."""
    path = folder / "hostile.kubeconfig"
    path.write_text(json.dumps(kubeconfig(folder)))
    secret_file(folder).parent.mkdir(exist_ok=True)
    secret_file(folder).write_text(f"JWT_SECRET={SECRET}\n")
    token_file = kubeconfig(folder) | {"users": [{"name": "a", "user": {"tokenFile": str(secret_file(folder))}}]}
    return {
        "other": {"conn_type": "kubernetes", "extra": {"kube_config_path": str(path)}},
        "allowed": {"conn_type": "kubernetes", "extra": {"kube_config": kubeconfig(folder)}},
        "allowed_path": {"conn_type": "kubernetes", "extra": {"kube_config_path": str(path)}},
        "allowed_file": {"conn_type": "kubernetes", "extra": {"kube_config": token_file}},
    }


def _job(home: Path, owner: str, name: str = JOB) -> Path:
    """Create a job whose record names a task's try as its owner; return the folder of its logs."""
    folder = home / "jobs" / name
    record = JobRecord.new(name=name, uid="planted", digest="d", owner=owner, now=1.0)
    plan = Plan(name=name, role="trainer", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="/train.py")
    logs = folder / "nodes" / "0" / "attempt-1.1" / "logs" / "round-1"
    logs.mkdir(parents=True)
    (folder / "record.json").write_text(record.to_json())
    (folder / "plan.json").write_text(codec.dumps(plan))
    return logs


def _own_home(folder: Path) -> Path:
    return folder / "home"


def _linked_log(folder: Path, owner: str) -> Planted:
    logs = _job(_own_home(folder), owner)
    (logs / "rank-0.err").symlink_to(secret_file(folder))
    return Planted({"name": JOB, "backend": "local"})


def _chosen_log_dir(folder: Path, owner: str) -> Planted:
    """A job may choose where its logs are; the API server must not read them there."""
    home = _own_home(folder)
    job = home / "jobs" / "chosen"
    _job(home, owner, "chosen")
    elsewhere = folder / "chosen" / "chosen" / "attempt-1" / "node-0.1" / "round-1"
    elsewhere.mkdir(parents=True)
    (elsewhere / "rank-0.err").write_text(f"{SECRET}\n")
    plan = codec.loads(Plan, (job / "plan.json").read_bytes())
    (job / "plan.json").write_text(codec.dumps(build(Plan, **{**plan.__dict__, "log_dir": str(folder / "chosen")})))
    return Planted({"name": "chosen", "backend": "local"})


def _foreign_home(folder: Path, owner: str) -> Planted:
    logs = _job(folder / "foreign", owner)
    (logs / "rank-0.err").write_text(f"{SECRET}\n")
    return Planted({"name": JOB, "backend": "local", "home": str(folder / "foreign")})


def _linked_record(folder: Path, owner: str) -> Planted:
    job = _own_home(folder) / "jobs" / "linked"
    job.mkdir(parents=True)
    (job / "record.json").symlink_to(secret_file(folder))
    (job / "plan.json").write_text("{}")
    return Planted({"name": "linked", "backend": "local"})


def _others_job(folder: Path, owner: str) -> Planted:
    (name,) = (path.name for path in (_own_home(folder) / "jobs").iterdir() if path.name.startswith("counting-train"))
    return Planted({"name": name, "backend": "local", "owner": owner})


def _note(**words: str) -> Callable[[Path, str], Planted]:
    return lambda folder, owner: Planted({"name": JOB, "owner": owner, **words})


#: What is planted, by the name of the attack.
ATTACKS: Mapping[str, Callable[[Path, str], Planted]] = {
    "a kubeconfig of the task's own": lambda folder, owner: Planted(
        {"name": JOB, "backend": "kubernetes", "kubeconfig": str(folder / "hostile.kubeconfig"), "owner": owner}
    ),
    "a connection with a kubeconfig": _note(backend="kubernetes", conn_id="other"),
    "no backend in the note": _note(conn_id="other"),
    "a plug-in in an allowed connection": _note(backend="kubernetes", conn_id="allowed"),
    "a file in an allowed connection": _note(backend="kubernetes", conn_id="allowed_file"),
    "a kubeconfig's path in an allowed connection": _note(backend="kubernetes", conn_id="allowed_path"),
    "an allowed connection and a kubeconfig": lambda folder, owner: Planted(
        {"name": JOB, "conn_id": "allowed", "kubeconfig": str(folder / "hostile.kubeconfig"), "backend": "kubernetes"}
    ),
    "a log that is a link": _linked_log,
    "a folder of logs that the job chose": _chosen_log_dir,
    "a home of the task's own": _foreign_home,
    "a record that is a link": _linked_record,
    "the job of another task": _others_job,
    "a path in the place of a name": lambda folder, owner: Planted({"name": "../../secret", "backend": "local"}),
    "no words in the note": lambda folder, owner: Planted({"name": ["x"], "backend": {"a": 1}, "conn_id": 7, "home": None}),
    "a page that is none": lambda folder, owner: Planted({"name": "gone", "backend": "local"}, page=[[[{"a": "b" * 9}]]]),
    "a page that is too large": lambda folder, owner: Planted({"name": "gone", "backend": "local"}, page=["x" * (4 << 20)]),
}


def plant(attack: str, *, owner: str, folder: Path) -> Planted:
    """Do what the attack needs on disk, and return what the task writes for it."""
    return ATTACKS[attack](folder, owner)

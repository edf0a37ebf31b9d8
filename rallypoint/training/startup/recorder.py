"""Reports the collectives of this process to the agent, as torch's flight recorder and its process groups know them.

Loaded by the start-up module as `_rallypoint_recorder`, at the first step of a process that has a process group. The main
thread of a rank that hangs cannot answer, so a thread waits for a byte in a named pipe: until then it costs nothing. It asks
torch and writes one line of JSON, which the agent reads (node/health/collectives.py). What a version of torch does not have is
left out; a process whose GIL is never given back, or that is stopped, does not answer.
"""

import _thread
import json
import os
import sys

__all__ = ["answer", "groups", "last", "listen"]

#: The recorder of process groups on the CPU, and NCCL's.
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")

#: A process with more groups, or more calls that have not completed, reports its last collective alone.
_GROUPS, _PENDING = 64, 64


def listen(path: str) -> None:
    """Answer whoever writes to the pipe `path`.ask, in the file `path`.told; does nothing without a process group."""
    groups = sys.modules.get("torch.distributed.distributed_c10d")
    if groups is None or not groups.is_initialized():
        return
    pipe = path + ".ask"
    if not os.path.exists(pipe):
        os.mkfifo(pipe, 0o600)
    # Open for both: there is always somebody who could write, so a read waits.
    _thread.start_new_thread(_answer, (os.open(pipe, os.O_RDWR), path + ".told"))


def _answer(pipe: int, path: str) -> None:
    while os.read(pipe, 1):
        beside = path + "." + str(os.getpid())
        try:
            with open(beside, "w", encoding="utf-8") as file:
                file.write(json.dumps(answer()) + "\n")
            os.replace(beside, path)
        except OSError:
            return


def answer() -> dict:  # type: ignore[type-arg]
    """Return the last collective and the process groups of this process."""
    try:
        recorded = _recorded()
    except Exception as error:  # noqa: BLE001  the script must not notice
        return {"last": repr(error), "groups": []}
    try:
        return {"last": last(recorded), "groups": groups(recorded)}
    except Exception as error:  # noqa: BLE001
        return {"last": last(recorded), "groups": [], "error": repr(error)}


def _recorded() -> list:  # type: ignore[type-arg]
    torch_side = sys.modules.get("torch._C._distributed_c10d")
    entries: list = []  # type: ignore[type-arg]
    for name in _DUMPS:
        dump = getattr(torch_side, name, None)
        if dump is not None:
            entries += json.loads(dump() or b"{}").get("entries") or []
    return entries


def last(entries: list) -> str:  # type: ignore[type-arg]
    """Return the last collective, `all_reduce #41 of group 0, not done`; "" where none is known."""
    if not entries:
        return ""
    entry = max(entries, key=_age)
    number = entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id", 0)
    return f"{_operation(entry)} #{number} of group {_group(entry)}, {'done' if _done(entry) else 'not done'}"


def groups(entries: list) -> list:  # type: ignore[type-arg]
    """Return `[name, first, step, size, called, [[operation, number], ...]]` of each group; none where one cannot be described.

    `called` is the group's own count: entries of a group of the same name in an earlier world do not matter.
    """
    module, pulse = sys.modules.get("torch.distributed.distributed_c10d"), sys.modules.get("_rallypoint_pulse")
    if module is None or not module.is_initialized():
        return []
    # gloo counts sends and receives as collectives, on the two ranks alone, and does not record them: its numbers say nothing.
    if getattr(pulse, "point_to_point", False) and not any(entry.get("is_p2p") for entry in entries):
        return []
    world = module._world  # noqa: SLF001
    found = []
    for group, name in list(world.pg_names.items()):
        ranks = sorted(world.pg_group_ranks[group])
        step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        if ranks != list(range(ranks[0], ranks[0] + step * len(ranks), step)):
            return []
        called = group._get_sequence_number_for_group()  # noqa: SLF001
        found.append([str(name), ranks[0], step, len(ranks), called, _pending(entries, str(name), called)])
    few = len(found) <= _GROUPS and sum(len(one[5]) for one in found) <= _PENDING
    return found if few else []


def _pending(entries: list, name: str, called: int) -> list:  # type: ignore[type-arg]
    """Return the calls of a group that have not completed."""
    pending, newest = [], called
    for entry in sorted((one for one in entries if _group(one) == name), key=_age, reverse=True):
        number = 0 if entry.get("is_p2p") else entry.get("collective_seq_id", 0)
        if number > newest:
            break  # numbers begin again with a new group of the same name: this entry and all before it are of an earlier world
        newest = number or newest
        if not _done(entry):
            pending.append([_operation(entry), number])
    return pending


def _age(entry: dict) -> tuple:  # type: ignore[type-arg]
    return entry.get("time_created_ns", 0), entry.get("record_id", 0)


def _group(entry: dict) -> str:  # type: ignore[type-arg]
    return str((entry.get("process_group") or ["?"])[0])


def _done(entry: dict) -> bool:  # type: ignore[type-arg]
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _operation(entry: dict) -> str:  # type: ignore[type-arg]
    return str(entry.get("profiling_name", "?")).rpartition(":")[2].split(" ")[0]

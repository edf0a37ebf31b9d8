"""Tells who asks which collective this process has called last, as torch's flight recorder has it.

Loaded by the start-up module as `_rallypoint_recorder`, at the first step of a process that has a process group. The main
thread of a rank that hangs cannot answer, so a thread waits for a byte in a named pipe: until then it costs nothing. It asks
torch and writes one line, which the agent reads. What a version of torch does not have is not told; a process whose GIL is
never given back, or that is stopped, does not answer.
"""

import _thread
import json
import os
import sys

__all__ = ["last", "listen"]

#: The recorder of process groups on the CPU, and NCCL's.
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


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
        try:
            told = last()
        except Exception as error:  # noqa: BLE001  the script must not notice
            told = repr(error)
        beside = path + "." + str(os.getpid())
        try:
            with open(beside, "w", encoding="utf-8") as file:
                file.write(told + "\n")
            os.replace(beside, path)
        except OSError:
            return


def last() -> str:
    """Return the last collective, `all_reduce #41 of group 0, not done`; "" where none is known."""
    torch_side = sys.modules.get("torch._C._distributed_c10d")
    entries: list = []  # type: ignore[type-arg]
    for name in _DUMPS:
        dump = getattr(torch_side, name, None)
        if dump is not None:
            entries += json.loads(dump() or b"{}").get("entries") or []
    if not entries:
        return ""
    entry = max(entries, key=lambda one: (one.get("time_created_ns", 0), one.get("record_id", 0)))
    number = entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id", 0)
    group = (entry.get("process_group") or ["?"])[0]
    done = entry.get("retired") or entry.get("state") == "completed"
    operation = str(entry.get("profiling_name", "?")).rpartition(":")[2].split(" ")[0]
    return f"{operation} #{number} of group {group}, {'done' if done else 'not done'}"

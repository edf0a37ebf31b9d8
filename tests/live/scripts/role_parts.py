"""Parts of jobs with several roles: each instance says when it begins, and lives until it may end."""

import json
import os
import pathlib
import signal
import sys
import time

FOLDER = pathlib.Path(os.environ["ROLE_JOBS_FOLDER"])


def _say(what: str) -> None:
    role, rank = os.environ["RALLYPOINT_ROLE"], os.environ["RALLYPOINT_ROLE_RANK"]
    names = ("RALLYPOINT_INCARNATION", "RALLYPOINT_JOB", "RALLYPOINT_GROUP", "CUDA_VISIBLE_DEVICES")
    line = {"what": what, "at": time.time(), "pid": os.getpid(), "torch": "torch" in sys.modules}
    line |= {name: os.environ.get(name) for name in names}
    with (FOLDER / f"{role}-{rank}.lines").open("a") as file:
        file.write(json.dumps(line) + "\n")


def work() -> None:
    """Live until all may end; a file with this instance's name ends it with the code that it holds."""
    _say("begin")
    own = FOLDER / f"{os.environ['RALLYPOINT_ROLE']}-{os.environ['RALLYPOINT_ROLE_RANK']}.code"
    while not (FOLDER / "enough").exists():
        if own.exists():
            code = int(own.read_text())
            own.unlink()
            sys.exit(code)
        time.sleep(0.02)
    _say("end")


def serve() -> None:
    """Live until it is ended."""
    _say("begin")
    while True:
        time.sleep(60.0)


def refuse_to_end() -> None:
    """Ignore every request for an end, in a child, too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(600.0)
        os._exit(0)
    serve()


class Worker:
    """An entry point that is a class."""

    def run(self) -> None:
        """Do as `work` does."""
        work()


def fail() -> None:
    """End with code 3."""
    _say("begin")
    sys.exit(3)


def speak() -> None:
    """Write a line to each stream."""
    print("to stdout")
    print("to stderr", file=sys.stderr)


def say_once() -> None:
    """End well at once."""
    _say("begin")


def report() -> None:
    """Leave a result."""
    from rallypoint.training import report_result

    report_result({"role": os.environ["RALLYPOINT_ROLE"]})


if __name__ == "__main__":
    _say(" ".join(["begin", *sys.argv[1:]]))

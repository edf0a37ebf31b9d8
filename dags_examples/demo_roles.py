"""`make demo-roles`: a job with three roles learns to balance a pole through the kill of a rollout and of a trainer rank.

All files are in `.demo-roles/` (or `--folder`), which each run creates anew: the state of the job, the events of its
processes, and the picture. The demo leaves no process running.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dags_examples.demo_roles_picture import Event, draw, tell
from dags_examples.rl_cartpole import GOAL

ROOT = Path(__file__).parents[1]
COMMAND = str(Path(sys.executable).with_name("rallypoint"))
JOB = Path(__file__).with_name("rl_cartpole.yaml")

#: Seconds in which the job must reach its score.
LIMIT = 120.0

#: What is killed, unless `--kill` names others, and the numbers of updates after which it is.
KILLS, AFTER = ("rollout/1", "trainer/1"), (6, 20)

_LOOK = 0.05


@dataclass
class Watch:
    """Events of the processes and of the demo so far."""

    folder: Path
    victims: Sequence[str]
    kills: list[Event] = field(default_factory=list)

    def events(self) -> list[Event]:
        """Return all events in their order."""
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [Event.read(json.loads(line)) for line in lines if line.endswith("}")]
        return sorted([*found, *self.kills], key=lambda event: event.at)

    def kill(self) -> None:
        """Kill the next process if the training has come far enough."""
        if len(self.kills) == len(self.victims):
            return
        name, after = self.victims[len(self.kills)], AFTER[len(self.kills)]
        events = self.events()
        if max((event.step or 0 for event in events), default=0) < after:
            return
        victim = [event for event in events if (event.name, event.what) == (name, "started")][-1]
        os.kill(victim.pid, signal.SIGKILL)
        self.kills.append(dataclasses.replace(victim, at=time.time(), what="killed"))
        print(f"  ---> SIGKILL to {name} (process {victim.pid}) after {after} updates", flush=True)


def main() -> int:
    """Run the demo; return 0 if the job reaches its score and only the killed processes were replaced, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m dags_examples.demo_roles", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo-roles", help="folder of the demo, which is replaced")
    parser.add_argument("--kill", nargs=2, default=KILLS, metavar="ROLE/RANK", help="the two processes to kill")
    args = parser.parse_args()
    folder = args.folder.absolute()
    end_job(folder)  # of a demo that was itself killed
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    document = folder / "rl_cartpole.yaml"
    document.write_text(JOB.read_text().replace("config: {", f"config: {{folder: {json.dumps(str(folder))}, "))
    shutil.copy(JOB.with_suffix(".py"), folder)
    watch = Watch(folder, args.kill)
    print(
        f"== Trainer (2 ranks), 2 rollouts and an evaluator learn until 20 episodes have {GOAL:g} steps on average", flush=True
    )
    began = time.time()
    try:
        code = run(document, watch)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of it running
        end_job(folder)
    return report(watch, began, code)


def run(document: Path, watch: Watch) -> int:
    """Submit the job, kill two processes, and wait for its end; return the exit code of the command."""
    with (watch.folder / "job.log").open("wb") as log:
        command = [COMMAND, "submit", str(document), "--watch"]
        process = subprocess.Popen(command, env=environment(watch.folder), stdout=log, stderr=log)
        until, shown = time.time() + LIMIT, 0
        try:
            while process.poll() is None and time.time() < until:
                watch.kill()
                shown = show(watch.events(), shown)
                time.sleep(_LOOK)
            return process.returncode if process.returncode is not None else 1
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def show(events: Sequence[Event], shown: int) -> int:
    """Print the scores that are new; return their number."""
    scores = [event for event in events if event.score is not None]
    for event in scores[shown:]:
        print(f"  update {event.step}: {event.score:.1f} of 500 steps", flush=True)
    return len(scores)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of the commands."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RALLYPOINT_")}
    return {
        **kept,
        "RALLYPOINT_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join((str(ROOT), kept.get("PYTHONPATH", ""))),
    }


def end_job(folder: Path) -> None:
    """Delete the job, with its processes."""
    if (folder / "home" / "jobs").exists():
        command = [COMMAND, "delete", "cartpole"]
        subprocess.run(command, env=environment(folder), capture_output=True, check=False)


def report(watch: Watch, began: float, code: int) -> int:
    """Print and draw what happened; return the exit code of the demo."""
    events = watch.events()
    scores = [event.score for event in events if event.score is not None]
    steps = [event.step for event in events if event.score is not None and event.step is not None]
    replaced = [event.name for event in events if event.what == "started"]
    again = sorted({one for one in replaced if replaced.count(one) > 1})
    good: dict[str, Any] = {
        f"the job succeeded with a score of {max(scores, default=0.0):.1f}": code == 0 and max(scores, default=0.0) >= GOAL,
        "only the killed processes were started again": again == sorted(watch.victims),
        "no update was lost": steps == sorted(steps),
    }
    print("\n== Events")
    print(tell(events, began))
    picture = watch.folder / "timeline.png"
    draw(events, began, picture, goal=GOAL)
    print()
    for text, held in good.items():
        print(f"  {'yes' if held else 'NO '}  {text}")
    print(f"  picture  {picture}")
    if code != 0:
        print(f"  The job did not succeed; see {watch.folder / 'job.log'}", file=sys.stderr)
    print(f"\n{time.time() - began:.0f} s in all.")
    return 0 if all(good.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What a script may do, in one process with the real torch; it reads its own pulse and prints what it finds, a line each."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rallypoint.training.phases import phase
from rallypoint.wire import env
from rallypoint.wire.progress import ProgressFile
from rallypoint.wire.pulse import Phase, Pulse

memory = ProgressFile.open(Path(os.environ[env.PROGRESS_FILE]))
folder = Path(os.environ[env.PROGRESS_FILE]).parent
rows = TensorDataset(torch.ones(16, 4))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)


def pulse() -> Pulse:
    return memory.pulse(0)


def count(which: Phase) -> int:
    return sum(memory.counts(0).get(which, ()))


def tell(name: str, **found: object) -> None:
    print(json.dumps({"name": name, **found}), flush=True)


def alive(work: Callable[[], object]) -> bool:
    """Return whether something is a sign of life."""
    before = pulse().at
    work()
    return pulse().at > before


def backward() -> None:
    model(torch.ones(2, 4)).sum().backward()


def step() -> None:
    backward()
    optimizer.step()


class Seen(nn.Module):
    """Tells in which phase it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[str] = []

    def forward(self, batch: object) -> None:
        self.phases.append(pulse().phase.value)


class Slow(TensorDataset):
    """Tells in which phase one waits for it, and does what a helper may do."""

    phases: ClassVar[list[str]] = []

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        Slow.phases.append(pulse().phase.value)
        torch.save(index, folder / f"helper-{os.getpid()}")
        return super().__getitem__(index)


def waits_before_it_trains() -> None:
    began = sys.modules["_rallypoint_pulse"].clock()
    sys.modules["_rallypoint_pulse"].waits(began - 10**12, began)
    step()
    tell("waited", out=[pulse().out_time, pulse().out_steps])


def starts() -> None:
    phases = []
    for _ in range(3):
        phases.append(pulse().phase.value)
        step()
    tell("start", phases=phases, starts=count(Phase.START_UP), steps=count(Phase.STEP))


def scales() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    steps, taken = memory.life(0).steps, []
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(model(torch.full((2, 4), float("inf"))).sum()).backward()
        scaler.step(optimizer)
        taken.append(alive(scaler.update))
    tell("scaler", skipped=memory.life(0).steps == steps, alive=taken)


def fails() -> None:
    """A collective that raises: its group is gone."""

    def raises() -> None:
        try:
            torch.distributed.all_reduce(torch.ones(1))
        except (RuntimeError, ValueError):
            raised.append(True)

    raised: list[bool] = []
    lives = [alive(raises) for _ in range(2)]
    tell("failed", alive=lives, raised=raised, inside=pulse().collectives - pulse().left)


def accumulates() -> None:
    tell("accumulation", alive=[alive(backward) for _ in range(3)])


def has_several() -> None:
    other = torch.optim.Adam(nn.Linear(2, 1).parameters())
    tell("several", alive=[alive(one.step) for one in (optimizer, other, optimizer)])


def replays() -> None:
    graphs = types.SimpleNamespace(CUDAGraph=type("CUDAGraph", (), {"replay": lambda _: 7}))
    sys.modules["_rallypoint_watching"].watch("torch.cuda.graphs", graphs)
    graph, before = graphs.CUDAGraph(), count(Phase.STEP)
    lives = [alive(graph.replay) for _ in range(20)]
    answer, replayed = graph.replay(), count(Phase.STEP) - before
    step()
    between = count(Phase.STEP)
    for _ in range(3):
        graph.replay()
    tell("graphs", alive=all(lives), steps=replayed, result=answer, eager=count(Phase.STEP) == between)


def waits_for_data() -> None:
    before = (count(Phase.DATA), count(Phase.FIRST_BATCH))
    for _ in DataLoader(Slow(torch.ones(4, 4)), batch_size=1):
        pass
    here, Slow.phases = Slow.phases, []
    saves, at = count(Phase.CHECKPOINT), pulse()
    for _ in DataLoader(Slow(torch.ones(4, 4)), batch_size=1, num_workers=2, multiprocessing_context="fork"):
        pass
    helpers = [path for path in folder.glob("helper-*") if path.name != f"helper-{os.getpid()}"]
    tell(
        "data",
        phases=here,
        counted=[count(Phase.DATA) > before[0], count(Phase.FIRST_BATCH) > before[1]],
        helpers=len(helpers),
        quiet=(count(Phase.CHECKPOINT), pulse().phase, at.phase) == (saves, Phase.STEP, Phase.STEP),
    )


def evaluates() -> None:
    seen, before = Seen(), count(Phase.EVALUATION)
    model.eval()
    for (batch,) in DataLoader(rows, batch_size=4):
        seen(batch)
    inside = pulse().phase.value
    model.train()
    step()
    tell("evaluation", phases=seen.phases, inside=inside, after=pulse().phase.value, visits=count(Phase.EVALUATION) - before)


def teaches() -> None:
    teacher, before, phases = nn.Linear(4, 1), count(Phase.EVALUATION), []
    for _ in range(6):
        teacher.eval()
        phases.append(pulse().phase.value)
        step()
    tell("teacher", first=phases[0], last=phases[-1], visits=count(Phase.EVALUATION) - before)


def saves() -> None:
    phases: list[str] = []

    class Words:
        def __reduce__(self) -> tuple[object, ...]:
            phases.append(pulse().phase.value)
            return (str, ("words",))

    before = count(Phase.CHECKPOINT)
    torch.save(Words(), folder / "model.pt")
    in_thread = threading.Thread(target=torch.save, args=(Words(), folder / "other.pt"))
    in_thread.start()
    in_thread.join()
    tell("checkpoint", phases=phases, saved=count(Phase.CHECKPOINT) - before, after=pulse().phase.value)


def saves_apart() -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    before = count(Phase.CHECKPOINT)
    save({"weight": torch.ones(2)}, checkpoint_id=folder / "apart")
    tell("dcp", saved=count(Phase.CHECKPOINT) > before, after=pulse().phase.value)


def compiles() -> None:
    phases: list[str] = []

    def backend(graph: Callable[..., object], _: object) -> Callable[..., object]:
        phases.append(pulse().phase.value)
        return graph

    before = count(Phase.COMPILE)
    torch.compile(lambda x: x * 2, backend=backend)(torch.ones(2))
    tell("compile", phases=phases, compiled=count(Phase.COMPILE) - before, after=pulse().phase.value)


def tells() -> None:
    with phase("evaluation"):
        seen = Seen()
        for (batch,) in DataLoader(rows, batch_size=4):
            seen(batch)
        inside = pulse().phase.value
    said = ""
    try:
        phase("lunch")
    except ValueError as error:
        said = str(error)
    tell("told", inside=[*seen.phases, inside], after=pulse().phase.value, said=said)


def is_measured() -> None:
    for _ in range(3):
        step()
    begin = pulse()
    for _ in range(10):
        time.sleep(0.01)
        step()
    model.eval()
    time.sleep(0.2)
    model.train()
    step()
    end = pulse()
    took = (end.step_at - begin.step_at - (end.out_time - begin.out_time)) / 1e9
    tell(
        "measured",
        took=took >= 0.1,
        without=took < (end.step_at - begin.step_at) / 1e9 - 0.19,
        out=end.out_steps - begin.out_steps,
    )


def forks() -> None:
    before = pulse()
    child = os.fork()
    if child == 0:
        model.eval()
        backward()
        os._exit(0)
    os.waitpid(child, 0)
    tell("fork", quiet=pulse() == before)


for work in (
    waits_before_it_trains,
    starts,
    scales,
    accumulates,
    has_several,
    replays,
    waits_for_data,
    evaluates,
    teaches,
    saves,
    saves_apart,
    compiles,
    tells,
    is_measured,
    fails,
    forks,
):
    work()

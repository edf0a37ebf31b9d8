"""The training of `train_plain.py` with the five lines of docs/guides/recovery.md, each marked `# +`.

`train_elastic.py FOLDER`: it trains until a worker is killed, and then makes a dozen steps more.
"""

import os
import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rallypoint import training  # +

FOLDER, RANK = Path(sys.argv[1]), int(os.environ["RANK"])


@training.elastic  # +
def train(state: training.State) -> None:
    """Train from where the state stands."""
    round_ = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    began, loss = state.step, torch.zeros(1)
    while round_ == 0 or state.step < began + 12:
        state.optimizer.zero_grad()
        loss = state.model(torch.randn(32, 64)).square().mean()
        loss.backward()
        state.optimizer.step()
        state.step += 1
        state.commit()  # +
        if state.step == began + 3:
            (FOLDER / f"trains-{round_}-{RANK}").write_text(str(os.getpid()))
    dist.all_reduce(loss.detach())
    kind = "fork" if "zygote" in Path("/proc/self/cmdline").read_text() else "program"
    print(f"rank {RANK} is done in round {round_}: {kind}", flush=True)


def main() -> None:
    """Make what is trained, and train."""
    training.init_process_group("gloo")  # +
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(training.State(model=model, optimizer=optimizer, step=0))  # +
    dist.destroy_process_group()


main()

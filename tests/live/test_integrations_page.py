"""The examples of docs/guides/integrations.md, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "integrations.md"
BEFORE = {
    "transformers": """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}

model, data = Model(), [{"x": torch.ones(4), "labels": torch.tensor(0.0)} for _ in range(16)]
""",
    "lightning": """
import torch
from lightning.pytorch import LightningModule
from torch import nn

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

ranks, module, data = 1, Module(), torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=4)
""",
}
AFTER = {
    "transformers": "assert trainer.state.global_step == 8",
    "lightning": "assert trainer.global_step == 8",
}


@pytest.mark.extended
@pytest.mark.parametrize("package", ["transformers", "lightning"])
def test_an_example_trains_without_an_agent_too(package: str, tmp_path: Path) -> None:
    """Each stands by itself under plain python, where there are no faults to live through."""
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (example,) = (text for text in examples if f"from {package}" in text)
    script = tmp_path / "example.py"
    script.write_text(f"{BEFORE[package]}\n{example}\n{AFTER[package]}\n")

    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )

    assert done.returncode == 0, done.stderr

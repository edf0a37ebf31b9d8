"""A Python function as the training: every rank calls it, and what it returns on rank 0 is the task's return value.

    airflow dags test elastic_training_function

The function is sent to the job's own folder (on Kubernetes: into a Secret of the job) and to nowhere else. Its arguments and
what it returns are JSON of at most 48 KiB; what is larger goes beside the checkpoint.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task


@dag(schedule=None, tags=["rallypoint"])
def elastic_training_function() -> None:
    # [START howto_decorator_elastic_training]
    @task.elastic_training(nodes=2, recovery={"max_restarts": 3})
    def fit(samples: int, *, steps: int) -> dict[str, Any]:
        """Fit a line to noisy data with DDP; imports stand in the function, since the DAG processor needs none of them."""
        import torch  # noqa: PLC0415
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

        from rallypoint.training import process_group, report_progress  # noqa: PLC0415

        with process_group() as world:
            torch.manual_seed(7)
            inputs = torch.linspace(-1, 1, samples).unsqueeze(1)
            targets = 3 * inputs + 1 + 0.01 * torch.randn_like(inputs)
            model = DistributedDataParallel(torch.nn.Linear(1, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            for step in range(steps):
                rows = slice(world.rank, None, world.world_size)
                loss = (model(inputs[rows]) - targets[rows]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                report_progress(step + 1, loss=loss)
            slope = model.module.weight.item()
        return {"slope": slope, "ranks": world.world_size}

    # [END howto_decorator_elastic_training]

    @task
    def judge(found: Any) -> float:
        """Fail the run when the line is a bad one."""
        if abs(found["slope"] - 3) > 0.1:
            raise ValueError(f"slope {found['slope']:.3f}; expected 3")
        return float(found["slope"])

    judge(fit(512, steps=100))


elastic_training_function()

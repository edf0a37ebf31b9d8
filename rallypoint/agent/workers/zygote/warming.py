"""The first step of a standby, before anybody needs it: what torch sets up at its first use costs 50 ms and more.

The random numbers of the script are those of a fresh process: their state is put back.
"""

from __future__ import annotations

__all__ = ["warm_cpu", "warm_device"]


def warm_cpu() -> None:
    """Take one step of autograd and of an optimizer on the CPU."""
    import torch  # noqa: PLC0415  the zygote has it

    state = torch.get_rng_state()
    try:
        _step("cpu")
    finally:
        torch.set_rng_state(state)


def warm_device(index: int) -> bool:
    """Make the context of a CUDA device, take a step there, and load NCCL; return whether there is such a device.

    It holds some hundred MB of the device's memory from now on.
    """
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        return False
    number = index % torch.cuda.device_count()
    # Left as it was found: a script that chooses no device has the first one.
    with torch.cuda.device(number):
        state = torch.cuda.get_rng_state()
        _step(f"cuda:{number}")
        torch.cuda.synchronize()
        torch.cuda.nccl.version()
        torch.cuda.set_rng_state(state)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return True


def _step(device: str) -> None:
    import torch  # noqa: PLC0415

    layer = torch.nn.Linear(8, 8, device=device)
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = kind(layer.parameters(), lr=0.1)
        layer(torch.ones(2, 8, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

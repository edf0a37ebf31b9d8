"""Which commands a fork can become, and of which zygote. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from rallypoint.agent.workers.zygote.preload import PLACE_VARIABLES
from rallypoint.agent.workers.zygote.program import What, parse

__all__ = ["birth_variables", "place_of", "refusal", "zygote_env"]

#: What is read once, when libraries are loaded or imported. TORCHELASTIC_* tells a place in the world and is read later.
_BIRTH = re.compile(
    r"^(LD_|PYTHON|CUDA_|OMP_|MKL_|KMP_|GOMP_|OPENBLAS_|NUMEXPR_|NVIDIA_|TORCH(?!ELASTIC_)|PYTORCH_|TRITON_|HIP_|ROCR_|MALLOC_|GLIBC_"
    r"|ASCEND_|NPU_|HF_|TF_|XLA_|PATH$|HOME$|TMPDIR$|XDG_CACHE_HOME$|LANG$|LC_|TZ$)"
)


def refusal(argv: Sequence[str], *, python: str) -> str:
    """Return why a command must be started as a program of its own; "" when a fork can become it.

    `python` is the interpreter of the zygote.
    """
    if argv[0] != python:
        return f"{argv[0]} is not this Python ({python})"
    if parse(argv) is None:
        return f"{' '.join(argv[:3])}: has options for the Python interpreter"
    return ""


def zygote_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a zygote whose forks start in `env`: without a place in the world."""
    return {name: value for name, value in env.items() if name not in PLACE_VARIABLES}


def birth_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter when modules are imported: a fork has those of its zygote, whatever it is told later."""
    return {name: value for name, value in env.items() if _BIRTH.match(name) and name not in PLACE_VARIABLES}


def place_of(argv: Sequence[str], cwd: str) -> str:
    """Return the folder that a program finds its own modules in (`sys.path[0]`); "" is where the agent is."""
    program = parse(argv)
    if program is not None and program.what is What.SCRIPT:
        return os.path.dirname(os.path.join(cwd, program.name))  # noqa: PTH118, PTH120  as text: it may be relative
    return cwd

"""`LaunchConfig`: llutil's fields, order and defaults; torch's newer ones behind them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rallypoint.agent import LaunchConfig, Std
from rallypoint.compat.launch_agent.config import SIGNALS

SEED: tuple[tuple[str, object], ...] = (
    ("run_id", ""),
    ("role", "default_role"),
    ("rdzv_endpoint", ""),
    ("rdzv_backend", "etcd"),
    ("rdzv_configs", {"timeout": 900}),
    ("rdzv_timeout", -1),
    ("max_restarts", 3),
    ("monitor_interval", 30),
    ("start_method", "spawn"),
    ("log_dir", None),
    ("redirects", Std.NONE),
    ("tee", Std.NONE),
    ("metrics_cfg", {}),
)


@pytest.mark.parametrize(("name", "default"), [pytest.param(*row, id=f"L7-{row[0]}") for row in SEED])
def test_defaults_are_those_of_the_contract(name: str, default: object) -> None:
    """With the time-out filled in, as torch does."""
    assert getattr(LaunchConfig(1, 2, 3), name) == default


def test_positions_are_those_of_the_contract() -> None:
    """All sixteen can be given by position, and no more."""
    given: list[Any] = [
        "id",
        "r",
        "h:1",
        "c10d",
        {"timeout": 7},
        -1,
        1,
        2.0,
        "fork",
        "/l",
        Std.OUT,
        Std.ERR,
        {"destination": "console"},
    ]

    config = LaunchConfig(1, 2, 3, *given)

    names = ["min_nodes", "max_nodes", "nproc_per_node", *(name for name, _ in SEED)]
    assert [getattr(config, name) for name in names] == [1, 2, 3, *given]
    with pytest.raises(TypeError):
        LaunchConfig(1, 2, 3, *given, None)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "timeout"),
    [
        pytest.param({"rdzv_configs": {"timeout": 5}}, 5, id="L5-only-the-dict"),
        pytest.param({}, 900, id="L5-neither"),
        pytest.param({"rdzv_timeout": 7}, 7, id="only-the-legacy-field"),
        pytest.param({"rdzv_timeout": 7, "rdzv_configs": {"timeout": 5}}, 7, id="the-legacy-field-wins"),
        pytest.param({"rdzv_timeout": 0, "rdzv_configs": {"timeout": 5}}, 0, id="zero-is-a-value"),
    ],
)
def test_timeouts_have_an_order(given: dict[str, Any], timeout: int) -> None:
    """The legacy field, then the dict, then 900."""
    assert LaunchConfig(1, 1, 1, **given).rdzv_configs["timeout"] == timeout


def test_the_callers_dict_is_not_changed() -> None:
    """The time-out is filled into a copy."""
    configs: dict[str, Any] = {}

    LaunchConfig(1, 1, 1, rdzv_configs=configs)

    assert configs == {}


def test_an_unset_start_method_can_be_told_from_spawn() -> None:
    """It reads the same, and only what somebody said is a choice."""
    unset, said = LaunchConfig(1, 1, 1), LaunchConfig(1, 1, 1, start_method="spawn")

    assert unset.start_method == said.start_method == "spawn"
    assert (unset.chose_start_method, said.chose_start_method) == (False, True)
    assert not dataclasses.replace(unset, role="other").chose_start_method


def test_torchs_config_of_the_same_meaning() -> None:
    """Every field that both have, and the streams in torch's own form."""
    api = pytest.importorskip("torch.distributed.launcher.api")
    config = LaunchConfig(1, 2, 3, run_id="r", rdzv_timeout=5, redirects={0: Std.OUT}, tee=Std.ALL, shutdown_timeout=4)

    theirs = config.to_torch()

    shared = {field.name for field in dataclasses.fields(api.LaunchConfig)} & {f.name for f in dataclasses.fields(config)}
    assert {name for name in shared if getattr(theirs, name) != getattr(config, name)} <= {"logs_specs"}
    assert shared >= {"min_nodes", "run_id", "rdzv_configs", "monitor_interval", "start_method", "metrics_cfg"}
    specs = theirs.logs_specs
    assert (specs._redirects, specs._tee) == ({0: 1}, 3)


def test_the_signals_are_torchs() -> None:
    """A newer field with torch's default."""
    assert LaunchConfig(1, 1, 1).signals_to_handle == SIGNALS == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"

"""Conversions between the arguments of a script and OmegaConf, which the script has installed if it uses them."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

__all__ = ["args_2_omega_conf", "convert_str_values", "omega_conf_2_args"]


def args_2_omega_conf(args: argparse.Namespace) -> Any:
    """Return parsed arguments as a `DictConfig`."""
    return importlib.import_module("omegaconf").OmegaConf.create(vars(args))


def omega_conf_2_args(conf: Any) -> argparse.Namespace:
    """Return a `DictConfig` as arguments."""
    return argparse.Namespace(**conf)


def convert_str_values(config: Any, convert_none: bool = True, convert_digit: bool = True) -> None:  # noqa: FBT001, FBT002  DLRover has it so
    """Replace texts in a `DictConfig` or `ListConfig`, at any depth: `None` by None, and numbers by their values."""
    for key, value in list(config.items() if hasattr(config, "items") else enumerate(config)):
        if isinstance(value, str):
            config[key] = _converted(value, convert_none=convert_none, convert_digit=convert_digit)
        elif type(value).__name__ in {"DictConfig", "ListConfig"}:
            convert_str_values(value, convert_none, convert_digit)


def _converted(text: str, *, convert_none: bool, convert_digit: bool) -> Any:
    if convert_none and text == "None":
        return None
    for number in (int, float) if convert_digit else ():
        try:
            return number(text)
        except ValueError:
            continue
    return text

"""Secrets that Airflow masks in the logs of tasks."""

from __future__ import annotations

from typing import Any

__all__ = ["redacted"]


def redacted(name: str, value: Any) -> str:
    """Return the text that Airflow shows for a value with this name; "" is a value without one."""
    from airflow.sdk.log import redact  # type: ignore[attr-defined]  # noqa: PLC0415  a DAG file does without

    shown: Any = redact({name: value}) if name else {name: redact(value)}
    return str(shown[name])

"""Variables that look like credentials, and those that only sound so."""

from __future__ import annotations

import pytest

from rallypoint.job import load_job
from rallypoint.job.secret_env import credential_names, env_warnings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_API_KEY", "0123456789abcdef"),
        ("HF_TOKEN", "abcdef"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG"),
        ("db_password", "hunter2"),
        ("MLFLOW_TRACKING_PASSWORD", "p4ss"),
        ("DATABASE_URL", "postgresql://ada:pass@db/train"),
        ("ANY", "AKIAIOSFODNN7EXAMPLE"),
        ("ANY", "ghp_" + "a" * 36),
        ("ANY", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln"),
        ("ANY", "-----BEGIN RSA PRIVATE KEY-----\nMII"),
    ],
)
def test_credentials_are_found(name, value):
    """By the name or by the value."""
    assert list(credential_names({name: value, "OTHER": "x"})) == [name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "4096"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/keys/gcp.json"),
        ("HF_TOKEN", ""),
        ("USE_AUTH_TOKEN", "true"),
        ("KEYBOARD", "azerty-long"),
        ("MASTER_URL", "http://head:8080/x"),
        ("SECRETARY", "somebody"),
    ],
)
def test_harmless_variables_are_not(name, value):
    """A warning that cries wolf is not read."""
    assert list(credential_names({name: value})) == []


def test_the_warning_names_the_variable_and_never_its_value():
    """It is printed and logged."""
    job = load_job({"name": "digits", "entrypoint": "train.py", "env": {"HF_TOKEN": "canary-value"}}, based=False)
    (warning,) = env_warnings(job)

    assert "'HF_TOKEN'" in warning
    assert "canary-value" not in warning

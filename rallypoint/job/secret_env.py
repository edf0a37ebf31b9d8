"""Variables of a job's `env` that look like credentials. Pure.

`env` is stored with the job: in its files, its ConfigMap, the manifests of its pods and the output of `rallypoint plan`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rallypoint.job.model import ElasticJob

__all__ = ["credential_names", "env_warnings"]

#: Words of a variable's name, between underscores or at its ends.
_NAME = re.compile(
    r"(?:^|_)(?:TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|PWD|API_?KEYS?|ACCESS_?KEYS?|PRIVATE_?KEYS?|CREDENTIALS?|APIKEY)(?:$|_)",
    re.IGNORECASE,
)

#: Values that issuers of tokens mark as such, private keys, and addresses with a password.
_VALUE = re.compile(
    r"^(?:AKIA|ASIA)[0-9A-Z]{16}$|^gh[pousr]_\w{20,}|^github_pat_\w{20,}|^glpat-[\w-]{16,}|^hf_[A-Za-z0-9]{20,}|^sk-[\w-]{16,}"
    r"|^xox[abprs]-|-----BEGIN [A-Z ]*PRIVATE KEY-----|^eyJ[\w-]+\.eyJ[\w-]+\.|^[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@"
)

#: Values that no credential has, whatever the name: paths, numbers, switches, and what is very short.
_HARMLESS = re.compile(r"^(?:/.*|~/.*|[-+\d.,]+|true|false|none|yes|no|.{0,3})$", re.IGNORECASE | re.DOTALL)


def credential_names(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of variables that look like credentials, by their names or by their values."""
    for name, value in env.items():
        if _VALUE.search(value) or (_NAME.search(name) and not _HARMLESS.match(value)):
            yield name


def env_warnings(job: ElasticJob) -> tuple[str, ...]:
    """Return a sentence for each such variable of a job; it names the variable, and never its value."""
    names = dict.fromkeys(name for role in job.roles for name in credential_names(role.env))
    return tuple(
        (
            f"env: {name!r} looks like a credential, and env is stored with the job as plain text; use pod_env with "
            "secretKeyRef or env_from on Kubernetes, or read it from a file"
        )
        for name in names
    )

"""Mutual TLS between the parts of one job: names of files, and the name that every certificate of a job has.

Addresses of pods change, so no certificate names one. Each part of a job presents a certificate for the job's own name, and
accepts a peer whose certificate has that name and is signed by the job's authority.
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["AUTHORITY", "AUTHORITY_KEY", "AUTO", "CERTIFICATE", "KEY", "OFF", "PEER_FILES", "SECRET_PREFIX", "peer_name"]

#: Values of `Plan.tls`: without TLS, with certificates that Rallypoint creates, or with those in a Secret: `secret:NAME`.
OFF, AUTO, SECRET_PREFIX = "", "auto", "secret:"

#: Files of a part of the job, and keys of a Secret: as cert-manager and `kubernetes.io/tls` have them.
AUTHORITY, CERTIFICATE, KEY = PEER_FILES = ("ca.crt", "tls.crt", "tls.key")

#: The authority's own key, with which certificates are renewed; pods do not get it.
AUTHORITY_KEY = "ca.key"

#: Reserved for private use: no public authority issues certificates for it.
_DOMAIN = "rallypoint.internal"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def peer_name(job: str) -> str:
    """Return the DNS name in the certificates of a job: `JOB.rallypoint.internal`, or a digest of a name that is no label."""
    label = job if _LABEL.fullmatch(job) else f"run-{hashlib.sha256(job.encode()).hexdigest()[:32]}"
    return f"{label}.{_DOMAIN}"

"""Names of the environment variables that Rallypoint sets or reads. One place, so that both sides spell them alike."""

from __future__ import annotations

__all__ = [
    "API_SERVER",
    "ATTEMPT",
    "BACKEND",
    "CHECKPOINT_DIR",
    "DEBUG",
    "HOME",
    "JOB_MARK",
    "JOB_NAME",
    "PROGRESS_FILE",
    "ROUND",
    "SECRET",
    "SERVICE_ACCOUNT",
    "TERM",
]

#: Folder that holds the local backend's state. Default `~/.rallypoint`.
HOME = "RALLYPOINT_HOME"

#: Where the `rallypoint` command looks for jobs when no `--backend` says so: `local` (the default) or `kubernetes`.
BACKEND = "RALLYPOINT_BACKEND"

#: Set to 1, the `rallypoint` command shows an error with its traceback.
DEBUG = "RALLYPOINT_DEBUG"

#: The job's secret, for agents started by hand (`rallypoint-agent run` with one `--rdzv-endpoint`).
SECRET = "RALLYPOINT_SECRET"

#: In the pods of coordinators and supervisors: URL of the Kubernetes API server, where Kubernetes does not tell it; it may be
#: plain http.
API_SERVER = "RALLYPOINT_API_SERVER"

#: In the same pods: folder with `token` and `ca.crt` of its service account. Default: where Kubernetes mounts it.
SERVICE_ACCOUNT = "RALLYPOINT_SERVICE_ACCOUNT"

#: In every process of a job: finds its descendants again, whatever they did to their session or parent. What is before its
#: first slash is the job's uid.
JOB_MARK = "RALLYPOINT_JOB_MARK"

#: In every worker: the job's name and the fence it belongs to, as three decimal numbers.
JOB_NAME = "RALLYPOINT_JOB"
ATTEMPT = "RALLYPOINT_ATTEMPT"
TERM = "RALLYPOINT_TERM"
ROUND = "RALLYPOINT_ROUND"

#: In every worker: file of shared memory in which it reports progress, in the slot of its local rank (wire/progress.py).
PROGRESS_FILE = "RALLYPOINT_PROGRESS_FILE"

#: In every worker whose job names a checkpoint folder: that folder.
CHECKPOINT_DIR = "RALLYPOINT_CHECKPOINT_DIR"

"""Names of the environment variables that Rallypoint sets or reads. One place, so that both sides spell them alike."""

from __future__ import annotations

__all__ = [
    "API_SERVER",
    "ATTEMPT",
    "BACKEND",
    "CHECK",
    "CHECKPOINT_DIR",
    "CONFIG",
    "CONFIG_FILE",
    "DEBUG",
    "EXCHANGE_KEY",
    "FUNCTION_FILE",
    "GROUP",
    "HOME",
    "HOST",
    "INCARNATION",
    "JOB_MARK",
    "JOB_NAME",
    "KEPT",
    "LIFELINE",
    "LIFE_OFFSET",
    "LINE",
    "LOCAL_RANK",
    "MACHINE",
    "MASKED",
    "MODULES_FILE",
    "POD_NAME",
    "POD_UID",
    "PRELOAD",
    "PROGRESS_FILE",
    "RAY_ADDRESS",
    "RAY_HOME",
    "RAY_JOB",
    "RAY_TOKEN",
    "RESET",
    "RESULT_FILE",
    "RESULT_LIMIT",
    "ROLE",
    "ROLES",
    "ROLES_PICKLE",
    "ROLES_SECRET",
    "ROLES_SECRET_FILE",
    "ROLES_TLS",
    "ROLES_URL",
    "ROLE_RANK",
    "ROLE_SIZE",
    "ROUND",
    "SAVE_AT_BREAKPOINT",
    "SECRET",
    "SERVICE_ACCOUNT",
    "SHOWN_ERRORS",
    "SNAPSHOT_DIR",
    "SNAPSHOT_REPLICA",
    "STACK_FILE",
    "TERM",
    "TRAINING_PORT",
    "UNSEEN",
]

#: Folder that holds the local backend's state. Default `~/.rallypoint`.
HOME = "RALLYPOINT_HOME"

#: Where the `rallypoint` command looks for jobs when no `--backend` says so: `local` (the default) or `kubernetes`.
BACKEND = "RALLYPOINT_BACKEND"

#: Set to 1, the `rallypoint` command shows an error with its traceback.
DEBUG = "RALLYPOINT_DEBUG"

#: Where secrets are in the job's environment and arguments (wire/masked.py); set by Airflow's operators.
MASKED = "RALLYPOINT_MASKED"

#: In workers: the key with which they sign what they exchange; it is derived from the job's secret.
EXCHANGE_KEY = "RALLYPOINT_EXCHANGE_KEY"

#: The job's secret, for agents started by hand (`rallypoint-agent run` with one `--rdzv-endpoint`).
SECRET = "RALLYPOINT_SECRET"

#: In the pods of coordinators and supervisors: URL of the Kubernetes API server, where Kubernetes does not tell it; it may be
#: plain http.
API_SERVER = "RALLYPOINT_API_SERVER"

#: In the same pods: folder with `token` and `ca.crt` of its service account. Default: where Kubernetes mounts it.
SERVICE_ACCOUNT = "RALLYPOINT_SERVICE_ACCOUNT"

#: In the pod of a supervisor: its own name and uid. The pod then owns its heartbeat, which is deleted with it.
POD_NAME, POD_UID = "RALLYPOINT_POD_NAME", "RALLYPOINT_POD_UID"

#: Variables of Ray itself: URL of the dashboard of a cluster, and its bearer token.
RAY_ADDRESS, RAY_TOKEN = "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN"

#: In a pod with an agent: the name of its machine, for people and for whoever keeps off it. Without it that is the address.
MACHINE = "RALLYPOINT_MACHINE"

#: In a pod with an agent: the latest earlier incarnation of its node whose end was not observed; not set if there is none.
UNSEEN = "RALLYPOINT_UNSEEN"

#: In every process of a job: finds its descendants again, whatever they did to their session or parent. What is before its
#: first slash is the job's uid.
JOB_MARK = "RALLYPOINT_JOB_MARK"

#: For the parent process of a node on Ray: `PID TICKS` of the actor that started it. The node ends when that process has ended.
LIFELINE = "RALLYPOINT_LIFELINE"

#: In the driver of a RayJob or RayCluster: the document of its job, as JSON.
RAY_JOB = "RALLYPOINT_RAY_JOB"

#: In the same process: folder in which the ledger stores the job.
RAY_HOME = "RALLYPOINT_RAY_HOME"

#: In every worker: the job's name and the fence it belongs to, as three decimal numbers.
JOB_NAME = "RALLYPOINT_JOB"
ATTEMPT = "RALLYPOINT_ATTEMPT"
TERM = "RALLYPOINT_TERM"
ROUND = "RALLYPOINT_ROUND"

#: In every worker of a job with a `config`: that mapping as JSON.
CONFIG = "RALLYPOINT_CONFIG"

#: In every worker: its number on its node. LOCAL_RANK says the same, unless --virtual-local-rank has it say 0.
LOCAL_RANK = "RALLYPOINT_LOCAL_RANK"

#: In every worker: file of shared memory in which it reports progress, in the slot of its local rank (wire/progress.py).
PROGRESS_FILE = "RALLYPOINT_PROGRESS_FILE"

#: In every worker: where its life record begins in that file, and the file for the stacks of its Python (training/startup).
LIFE_OFFSET = "RALLYPOINT_LIFE_OFFSET"
STACK_FILE = "RALLYPOINT_STACK_FILE"

#: In every worker whose errors reach the console or a pod's log: folder of those that were printed (training/startup).
SHOWN_ERRORS = "RALLYPOINT_SHOWN_ERRORS"

#: In every worker: the socket on which its agent speaks with it (wire/line.py).
LINE = "RALLYPOINT_LINE"

#: In every worker: how many workers of the world live on from the round before, and so have the state of training.
KEPT = "RALLYPOINT_KEPT"

#: In workers: where one of them leaves the names of what it imports, for the zygote to learn (training/startup).
MODULES_FILE = "RALLYPOINT_MODULES_FILE"

#: In the agent's environment: modules that the zygote imports beside torch, as `a,b`; `--preload` comes first.
PRELOAD = "RALLYPOINT_PRELOAD"

#: In the probes of a node check: their task, a JSON object (capabilities/node_check/probe.py).
CHECK = "RALLYPOINT_CHECK"

#: In every worker whose job names a checkpoint folder: that folder.
CHECKPOINT_DIR = "RALLYPOINT_CHECKPOINT_DIR"

#: In the worker of rank 0: where it leaves the job's result, for its agent to tell (wire/result.py).
RESULT_FILE = "RALLYPOINT_RESULT_FILE"

#: In an instance of a simple role in a pod: how many bytes its result may have. RESULT_FILE is then the termination message of
#: its container: a mount point, which no other file can replace.
RESULT_LIMIT = "RALLYPOINT_RESULT_LIMIT"

#: In the agents and workers of a job that is a function: the file that holds it (wire/function.py).
FUNCTION_FILE = "RALLYPOINT_FUNCTION_FILE"

#: In every worker: folder in shared memory for its snapshots (checkpoint/memory.py), which its agent makes and removes.
SNAPSHOT_DIR = "RALLYPOINT_SNAPSHOT_DIR"

#: In every worker of a job whose snapshots are kept on another node, too: of which steps, those that are a multiple of this.
SNAPSHOT_REPLICA = "RALLYPOINT_SNAPSHOT_REPLICA_EVERY"

#: In every worker with Ascend's NPUs: first of the ports that HCCL takes.
TRAINING_PORT = "HCCL_IF_BASE_PORT"

#: In every worker of a job whose agents persist the last snapshot of a worker that died: 1.
SAVE_AT_BREAKPOINT = "RALLYPOINT_SAVE_AT_BREAKPOINT"

#: In every process of a job with several roles: its role, its number among the instances of the role, and their number. The
#: last two change if a worker of an elastic role lives on into a new round.
ROLE, ROLE_RANK, ROLE_SIZE = "RALLYPOINT_ROLE", "RALLYPOINT_ROLE_RANK", "RALLYPOINT_ROLE_SIZE"

#: In the same processes: the group of the instance (its node within the role), and with ATTEMPT the life of the instance.
GROUP, RESET, INCARNATION = "RALLYPOINT_GROUP", "RALLYPOINT_RESET", "RALLYPOINT_INCARNATION"

#: In the same processes: all roles as a JSON object, `{"trainer": {"launch": "elastic", "total": 2, "driver": true}}`.
ROLES = "RALLYPOINT_ROLES"

#: In the same processes: the directory of instances, `file:///folder` or `http://host:port`.
ROLES_URL = "RALLYPOINT_ROLES_URL"

#: In the same processes: a file with the secret of calls between roles, or that secret.
ROLES_SECRET_FILE, ROLES_SECRET = "RALLYPOINT_ROLES_SECRET_FILE", "RALLYPOINT_ROLES_SECRET"

#: In the same processes: folder with the certificates of a job with TLS; 1 if calls may contain pickles.
ROLES_TLS, ROLES_PICKLE = "RALLYPOINT_ROLES_TLS", "RALLYPOINT_ROLES_PICKLE"

#: In the same processes: a file with the job's `config`, and the address at which other instances reach this process.
CONFIG_FILE, HOST = "RALLYPOINT_CONFIG_FILE", "RALLYPOINT_HOST"

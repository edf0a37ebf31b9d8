"""`rallypoint manifests`: what an administrator applies to a cluster before the first job."""

from __future__ import annotations

import argparse

from rallypoint.cli.options import Commands, add_command

__all__ = ["add", "run"]

_DESCRIPTION = """\
Print manifests as YAML, for `kubectl apply -f -`. Nothing is created and no cluster is asked.

rbac: service account, Role and RoleBinding for each side of a job. The coordinator's lets the
pod of that name write the job's status; a job names its account as `coordinator_service_account`.
The supervisor's is for whoever runs `rallypoint`, or an Airflow worker, against the cluster.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "manifests", "print what a cluster needs before the first job", _DESCRIPTION)
    parser.add_argument("what", choices=("rbac",), help="which manifests")
    # Not the option of the same name that says where jobs are looked for: that one asks a cluster.
    parser.add_argument(
        "--namespace", dest="jobs_in", metavar="NS", default="default", help="where jobs run (default: default)"
    )
    parser.add_argument(
        "--coordinator-account",
        metavar="NAME",
        default="",
        help="service account of coordinators (default: rallypoint-coordinator)",
    )
    parser.add_argument(
        "--supervisor-account",
        metavar="NAME",
        default="",
        help="service account of supervisors (default: rallypoint-supervisor)",
    )
    parser.add_argument(
        "--wrappers", action="store_true", help="the supervisor's side also has jobs of the kinds appwrapper and pytorchjob"
    )
    parser.add_argument(
        "--queues", action="store_true", help="the supervisor's side also has plain pods in queues of Kueue: it may patch pods"
    )
    parser.add_argument("--tls", action="store_true", help="the supervisor's side also renews the certificates of tls: auto")
    parser.add_argument(
        "--nodes",
        action="store_true",
        help="a ClusterRole, too: supervisors may look at machines, and notice a lost one before its pods are evicted",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the manifests."""
    # What is slow to import waits until it is needed: --help does without.
    from rallypoint.backends.kubernetes.names import COORDINATOR_ROLE, SUPERVISOR_ROLE  # noqa: PLC0415
    from rallypoint.backends.kubernetes.rbac import rbac  # noqa: PLC0415
    from rallypoint.job.document import write_yaml  # noqa: PLC0415

    objects = rbac(
        args.jobs_in,
        coordinator=args.coordinator_account or COORDINATOR_ROLE,
        supervisor=args.supervisor_account or SUPERVISOR_ROLE,
        wrappers=args.wrappers,
        queues=args.queues,
        nodes=args.nodes,
        tls=args.tls,
    )
    print("---\n".join(write_yaml(item) for item in objects), end="")
    return 0

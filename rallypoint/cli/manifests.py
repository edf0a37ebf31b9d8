"""`rallypoint manifests`: what an administrator applies to a cluster before the first job."""

from __future__ import annotations

import argparse
import sys

from rallypoint.cli.options import Commands, add_command
from rallypoint.wire.errors import RallypointError

__all__ = ["add", "run"]

_DESCRIPTION = """\
Print manifests as YAML, for `kubectl apply -f -`. Nothing is created and no cluster is asked.

rbac: service account, Role and RoleBinding for each side of a job. The coordinator's lets the
pod of that name write the job's status; a job names its account as `coordinator_service_account`.
The supervisor's is for whoever runs `rallypoint`, or an Airflow worker, against the cluster.

network-policy: lets only the pods of the jobs named --job connect to one another. The supervisor
reaches the coordinator through the API server, whose networks --api-server names.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "manifests", "print what a cluster needs before the first job", _DESCRIPTION)
    parser.add_argument("what", choices=("rbac", "network-policy"), help="which manifests")
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
    parser.add_argument(
        "--network-policies", action="store_true", help="the supervisor's side also has jobs with a network_policy"
    )
    parser.add_argument("--job", metavar="NAME", default="", help="with network-policy: name of the jobs")
    parser.add_argument(
        "--api-server",
        metavar="CIDR",
        action="append",
        default=[],
        help="with network-policy: network of the API server, which alone reaches the coordinator; may be repeated",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the manifests."""
    # What is slow to import waits until it is needed: --help does without.
    from rallypoint.backends.kubernetes.names import COORDINATOR_ROLE, SUPERVISOR_ROLE  # noqa: PLC0415
    from rallypoint.backends.kubernetes.rbac import rbac  # noqa: PLC0415
    from rallypoint.job.document import write_yaml  # noqa: PLC0415

    if args.what == "network-policy":
        return _network_policy(args)
    objects = rbac(
        args.jobs_in,
        coordinator=args.coordinator_account or COORDINATOR_ROLE,
        supervisor=args.supervisor_account or SUPERVISOR_ROLE,
        wrappers=args.wrappers,
        queues=args.queues,
        nodes=args.nodes,
        tls=args.tls,
        network=args.network_policies,
    )
    print("---\n".join(write_yaml(item) for item in objects), end="")
    return 0


def _network_policy(args: argparse.Namespace) -> int:
    from rallypoint.backends.kubernetes.manifests.network_policy import network_policy  # noqa: PLC0415  as above
    from rallypoint.job.document import write_yaml  # noqa: PLC0415

    if not args.job:
        raise RallypointError("--job: is missing; network-policy needs the name of the jobs")
    print(write_yaml(network_policy(args.jobs_in, args.job, api_server=args.api_server)), end="")
    if not args.api_server:
        note = "without --api-server the coordinator's port is open to every address; the job's secret protects it"
        print(f"rallypoint: note: {note}", file=sys.stderr)
    return 0

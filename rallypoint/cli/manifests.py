"""`rallypoint manifests`: manifests that an administrator applies to a cluster before the first job."""

from __future__ import annotations

import argparse
import sys

from rallypoint.cli.options import Commands, add_command
from rallypoint.wire.errors import RallypointError

__all__ = ["add", "run"]

_DESCRIPTION = """\
Print manifests as YAML for `kubectl apply -f -`. The command does not contact a
cluster.

`rallypoint manifests rbac` prints a service account, a Role and a RoleBinding
for the coordinator and for the supervisor. The coordinator's Role allows the
coordinator pod to write the status of its job. To run the coordinator pod with
the coordinator's service account, set the job field
`coordinator_service_account` to the name of the account. Airflow workers, and
all other processes that run `rallypoint` commands on the cluster, need the
supervisor's Role.

`rallypoint manifests network-policy` prints two NetworkPolicies: one for the
job in --job and one for the elastic roles of this job (if the job has several
roles). The NetworkPolicies allow connections only between the pods of the job.
The supervisor connects to the coordinator through the API server, so allow the
networks of the API server with --api-server.
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "manifests", "print RBAC and NetworkPolicy manifests for a Kubernetes cluster", _DESCRIPTION)
    parser.add_argument("what", choices=("rbac", "network-policy"), help="kind of manifests to print: rbac or network-policy")
    # Not the option of the same name that selects the jobs of a command: that option needs a cluster.
    parser.add_argument(
        "--namespace",
        dest="jobs_in",
        metavar="NS",
        default="default",
        help='Kubernetes namespace of the jobs (default: the namespace "default")',
    )
    parser.add_argument(
        "--coordinator-account",
        metavar="NAME",
        default="",
        help="name of the coordinator's service account (default: rallypoint-coordinator)",
    )
    parser.add_argument(
        "--supervisor-account",
        metavar="NAME",
        default="",
        help="name of the supervisor's service account (default: rallypoint-supervisor)",
    )
    _add_rights(parser)
    parser.add_argument(
        "--job",
        metavar="NAME",
        default="",
        help="name of the job whose pods may connect to each other; only for network-policy",
    )
    parser.add_argument(
        "--api-server",
        metavar="CIDR",
        action="append",
        default=[],
        help="network (CIDR) from which the API server connects; only for network-policy; may be repeated",
    )
    parser.set_defaults(run=run)


def _add_rights(parser: argparse.ArgumentParser) -> None:
    """Add the options for rights of supervisors that only some jobs need."""
    parser.add_argument("--wrappers", action="store_true", help="allow supervisors to manage AppWrappers and PyTorchJobs")
    parser.add_argument("--kuberay", action="store_true", help="allow supervisors to manage RayJobs and RayClusters")
    parser.add_argument("--queues", action="store_true", help="allow supervisors to patch pods (for jobs in Kueue queues)")
    parser.add_argument(
        "--tls", action="store_true", help="allow supervisors to renew TLS certificates (for jobs with the field tls: auto)"
    )
    parser.add_argument(
        "--nodes",
        action="store_true",
        help="allow supervisors to read Kubernetes nodes (ClusterRole), so that lost nodes are detected earlier",
    )
    parser.add_argument("--network-policies", action="store_true", help="allow supervisors to create NetworkPolicies for jobs")
    parser.add_argument(
        "--resource-claims",
        action="store_true",
        help="allow supervisors to create ResourceClaims (for jobs whose roles share GPUs)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the manifests."""
    # Imported here, because the import is slow and --help does not need it.
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
        kuberay=args.kuberay,
        queues=args.queues,
        nodes=args.nodes,
        tls=args.tls,
        network=args.network_policies,
        claims=args.resource_claims,
    )
    print("---\n".join(write_yaml(item) for item in objects), end="")
    return 0


def _network_policy(args: argparse.Namespace) -> int:
    from rallypoint.backends.kubernetes.manifests.network_policy import network_policies  # noqa: PLC0415  as above
    from rallypoint.job.document import write_yaml  # noqa: PLC0415

    if not args.job:
        raise RallypointError("--job: is missing; expected the name of the job whose pods may connect to each other")
    policies = network_policies(args.jobs_in, args.job, api_server=args.api_server)
    print("---\n".join(write_yaml(item) for item in policies), end="")
    if not args.api_server:
        note = "without --api-server the coordinator's port is open to every address; the job's secret protects it"
        print(f"rallypoint: note: {note}", file=sys.stderr)
    return 0

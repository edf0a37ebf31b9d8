"""The Role that is printed for supervisors is what a supervisor needs, and no more."""

from __future__ import annotations

import contextlib
import dataclasses
import time

import pytest

from rallypoint.backends.certificates import LIFETIME
from rallypoint.backends.contract import BackendError, ConflictError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.attempt_secrets import AttemptSecrets
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.names import SUPERVISOR_ROLE, JobRef, network_policy
from rallypoint.backends.kubernetes.names import roles_secret as roles_secret_name
from rallypoint.backends.kubernetes.rbac import NETWORK, NODES, SUPERVISOR, TLS, WRAPPERS, Grant, allows, rbac
from rallypoint.backends.kubernetes.roles.blueprint import roles_secret
from rallypoint.backends.kubernetes.watching.cluster import joined
from rallypoint.backends.requests import request_resumption, request_suspension
from rallypoint.job import load_job
from rallypoint.supervision.actions import CreateCoordinator, CreateNode, Purge, RemoveCoordinator, RemoveNode
from rallypoint.supervision.observation import NodeState
from rallypoint.supervision.record import Phase
from rallypoint.wire.plan import Kind
from rallypoint.wire.tls import AUTHORITY_KEY, PEER_FILES
from tests.emulator.controllers.api import Api
from tests.emulator.controllers.kueue import Queues
from tests.emulator.options import Options
from tests.emulator.running import running
from tests.kube.stage import KubernetesStage
from tests.kube.wrapped_jobs import submitted
from tests.waiting import eventually_async

pytestmark = [
    pytest.mark.live,
    pytest.mark.may_block("kubeconfigs are read in a thread, which has a loop of its own for that"),
]

#: Granted for what a short life on an idle cluster does not bring about, each with its occasion.
_RARELY = {
    ("events", "list"): "a pod waits for its volumes",
    ("pods/proxy", "create"): "a coordinator answers",
    ("pods/proxy", "get"): "a coordinator answers",
    ("services", "get"): "the Service is there already",
}


_GUARDED = Options(rbac=True)


@contextlib.contextmanager
def granted(tmp_path, options=_GUARDED, **more):
    """A cluster that enforces Roles, and in it a namespace to which the printed manifests were applied."""
    with running(options) as cluster:
        stage = KubernetesStage(tmp_path, cluster)
        for manifest in rbac(stage.namespace, **more):
            group = manifest["apiVersion"]
            root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
            where = "" if manifest["kind"].startswith("Cluster") else f"/namespaces/{manifest['metadata']['namespace']}"
            stage.ask("POST", f"{root}{where}/{manifest['kind'].lower()}s", manifest)
        yield stage


@pytest.fixture
def guarded(tmp_path, home):
    """Such a cluster, with the Roles alone."""
    with granted(tmp_path) as stage:
        yield stage


def supervisor_of(stage, tmp_path, account=SUPERVISOR_ROLE):
    """The backend as a service account has it, by a kubeconfig."""
    token = stage.emulator.token(account=account, namespace=stage.namespace)
    file = stage.emulator.kubeconfig(tmp_path / "kubeconfig", token=token)
    return KubernetesBackend(Access(namespace=stage.namespace, kubeconfig=str(file)), beat=0.2)


async def live_through(stage, backend):
    """A job's whole life, as far as it goes without an agent."""
    stored = await backend.submit(backend.plan(stage.job()), owner="ann")
    nobody_wrote = stored.version
    record = dataclasses.replace(stored.record, attempt=1, term=1, phase=Phase.RESUMING)
    async with backend.changes("digits"), backend.hold("digits", holder="ann"):
        stored = await backend.save(record, version=(await backend.load("digits")).version)
        with pytest.raises(ConflictError):
            await backend.save(record, version=nobody_wrote)
        for creation in (CreateCoordinator(attempt=1, term=1), CreateNode(attempt=1, node=0, incarnation=1)):
            await backend.act(record, stored.plan, creation)
            await backend.act(record, stored.plan, creation)

        async def runs():
            seen = await backend.observe(record)
            return all(n.state.value == "running" for n in (*seen.nodes, *seen.coordinators))

        await eventually_async(runs)
        async with backend.heartbeat("ann") as me:
            first = await backend.pulse(me)

            async def beaten():
                return (await backend.pulse(me)).beat != first.beat

            await eventually_async(beaten)
        assert [line async for line in backend.logs("digits")] == []
        assert await backend.status("digits") is None
        ending = dataclasses.replace(record, phase=Phase.TERMINATING)
        for removal in (RemoveNode(attempt=1, node=0, incarnation=1), RemoveCoordinator(attempt=1, term=1)):
            await backend.act(ending, stored.plan, removal)

        async def gone():
            return not (await backend.confirm(ending)).present

        await eventually_async(gone)
    await backend.act(ending, stored.plan, Purge())
    assert await backend.names() == ()


async def test_a_supervisor_uses_what_it_is_granted_and_nothing_else(guarded, tmp_path):
    """Each verb that a job's life asks for is in the Role, and each verb of the Role is asked for, or has its occasion."""
    backend = supervisor_of(guarded, tmp_path)
    try:
        await live_through(guarded, backend)
    finally:
        await backend.close()
    user = f"system:serviceaccount:{guarded.namespace}:{SUPERVISOR_ROLE}"
    uses = {(use["group"], use["resource"], use["verb"]) for use in guarded.emulator.uses(user=user)}
    ours = {use for use in uses if use[1] != "nodes"}

    assert [use for use in ours if not allows(SUPERVISOR, group=use[0], resource=use[1], verb=use[2])] == []
    granted = {(grant.group, grant.resource, verb) for grant in SUPERVISOR for verb in grant.verbs}
    unused = {(resource, verb) for group, resource, verb in granted - uses}
    assert unused <= set(_RARELY)


async def test_who_may_nothing_is_told_so_before_anything_is_created(guarded, tmp_path):
    """The error names the object, the namespace and the command that prints the Role."""
    guarded.ask("POST", guarded.path("serviceaccounts"), {"metadata": {"name": "nobody"}})
    backend = supervisor_of(guarded, tmp_path, account="nobody")
    try:
        with pytest.raises(BackendError, match="rallypoint manifests rbac"):
            await backend.submit(backend.plan(guarded.job()), owner="ann")
    finally:
        await backend.close()
    assert guarded.ask("GET", guarded.path("configmaps") + "?labelSelector=rallypoint.dev%2Fjob")["items"] == []


async def test_tls_and_network_policies_take_the_rights_that_are_printed_for_them(tmp_path, home):
    """`manifests rbac --tls --network-policies`: each verb is used, and no other. Another submission has another policy."""
    with granted(tmp_path, tls=True, network=True) as stage:
        backend = supervisor_of(stage, tmp_path)
        try:
            stored = await backend.submit(backend.plan(stage.job(tls="auto", network_policy="on")), owner="ann")
            record = dataclasses.replace(stored.record, attempt=1, term=1, phase=Phase.RESUMING)
            async with backend.changes("digits"), backend.hold("digits", holder="ann"):
                await backend.save(record, version=(await backend.load("digits")).version)
                for again in (backend, supervisor_of(stage, tmp_path)):  # the other one finds what is there
                    await again.act(record, stored.plan, CreateCoordinator(attempt=1, term=1))
                    if again is not backend:
                        await again.close()
            async with joined(backend.access) as cluster:
                ref = JobRef(name="digits", uid=record.uid, namespace=stage.namespace)
                assert await AttemptSecrets(cluster, clock=lambda: time.time() + LIFETIME / 2).renew(ref, 1)
                for attempt, value in ((2, "10.0.0.0/28"), (3, "10.0.0.0/24"), (4, "off")):
                    record = dataclasses.replace(record, attempt=attempt)
                    blueprint = backend.plan(stage.job(tls="auto", network_policy=value))
                    await backend.save(record, version=(await backend.load("digits")).version, blueprint=blueprint)
                    await backend.act(record, blueprint.plan, CreateCoordinator(attempt=attempt, term=1))
                    policy = await cluster.get("networkpolicies", network_policy(ref))
                    admitted = policy and policy["spec"]["ingress"][1]["from"]
                    assert admitted == (None if value == "off" else [{"ipBlock": {"cidr": value}}])
        finally:
            await backend.close()
        user = f"system:serviceaccount:{stage.namespace}:{SUPERVISOR_ROLE}"
        uses = {(use["group"], use["resource"], use["verb"]) for use in stage.emulator.uses(user=user)}

    granted_ = {(grant.group, grant.resource, verb) for grant in (*TLS, *NETWORK) for verb in grant.verbs}
    assert granted_ <= uses
    every = (*SUPERVISOR, *TLS, *NETWORK)
    ours = {use for use in uses if use[1] != "nodes"}
    assert [use for use in ours if not allows(every, group=use[0], resource=use[1], verb=use[2])] == []


async def test_the_secret_of_roles_gets_certificates_when_tls_is_wanted(tmp_path, home):
    """A finished job may be submitted again with `tls`; with the certificates there, or without `tls`, it stays as it is."""
    with granted(tmp_path, tls=True) as stage:
        backend = supervisor_of(stage, tmp_path)
        try:
            its, kept = await backend._its(), []
            job = JobRef(name="rl", uid="0123456789abcdef", namespace=stage.namespace)
            files = dict.fromkeys((*PEER_FILES, AUTHORITY_KEY), "pem")
            for certificates in (None, None, files, files, None):
                await its.actor.ensure("secrets", roles_secret(job, "token", certificates))
                kept.append(await its.cluster.get("secrets", roles_secret_name(job)))
        finally:
            await backend.close()

    assert [set(secret["data"]) - {"token"} for secret in kept] == [set(), set(), set(files), set(files), set(files)]
    uids = [secret["metadata"]["uid"] for secret in kept]
    assert (uids[0], uids[2]) == (uids[1], uids[4])
    assert uids[1] != uids[2]


@contextlib.asynccontextmanager
async def one_node_runs(stage, backend):
    """Give the record of a job whose node runs."""
    stored = await backend.submit(backend.plan(stage.job()), owner="ann")
    record = dataclasses.replace(stored.record, attempt=1, term=1, phase=Phase.RESUMING)
    async with backend.changes("digits"), backend.hold("digits", holder="ann"):
        stored = await backend.save(record, version=(await backend.load("digits")).version)
        await backend.act(record, stored.plan, CreateNode(attempt=1, node=0, incarnation=1))

        async def runs():
            return any(n.state is NodeState.RUNNING for n in (await backend.observe(record)).nodes)

        await eventually_async(runs)
        yield record


async def test_a_lost_machine_is_noticed_before_its_pods_are_evicted(tmp_path, home):
    """By whoever may look at machines: `manifests rbac --nodes`."""
    with granted(tmp_path, nodes=True) as stage:
        backend = supervisor_of(stage, tmp_path)
        try:
            async with one_node_runs(stage, backend) as record:
                (pod,) = stage.pods()
                stage.emulator.lose_node(name=pod["spec"]["nodeName"], power=False)

                async def unheard():
                    return any(n.state is NodeState.UNKNOWN for n in (await backend.observe(record)).nodes)

                await eventually_async(unheard)
                assert "deletionTimestamp" not in stage.pods()[0]["metadata"]
        finally:
            await backend.close()
        user = f"system:serviceaccount:{stage.namespace}:{SUPERVISOR_ROLE}"
        uses = {use["verb"] for use in stage.emulator.uses(user=user) if use["resource"] == "nodes"}

    assert uses <= set(NODES[0].verbs)


async def test_who_may_not_look_at_machines_says_so(guarded, tmp_path, caplog):
    """Once, with what it means and which command grants it; everything else goes on."""
    backend = supervisor_of(guarded, tmp_path)
    try:
        async with one_node_runs(guarded, backend):
            await eventually_async(lambda: "manifests rbac --nodes" in caplog.text)
    finally:
        await backend.close()

    assert caplog.text.count("manifests rbac --nodes") == 1


def used_by(stage, account):
    user = f"system:serviceaccount:{stage.namespace}:{account}"
    return {(use["group"], use["resource"], use["verb"]) for use in stage.emulator.uses(user=user)}


def rights(grants: tuple[Grant, ...]):
    return {(grant.group, grant.resource, verb) for grant in grants for verb in grant.verbs}


async def test_wrappers_use_what_they_are_granted_and_nothing_else(tmp_path, home):
    """Jobs of both kinds are submitted, suspended in a queue and without, resumed, reset and deleted, and servers are ended."""
    options = Options(rbac=True, controllers=("appwrapper", "jobset", "kueue", "pytorchjob"), speed=100.0)
    with granted(tmp_path, options, wrappers=True) as stage:
        may_create_jobsets(stage)
        async with Api(stage.emulator.url, stage.emulator.admin_token) as api:
            queues = Queues(api)
            await queues.ready()
            await queues.quota("team", pods=4)
        backend = supervisor_of(stage, tmp_path)
        try:
            await wrapped_lives(backend, tmp_path)
        finally:
            await backend.close()
        used = used_by(stage, SUPERVISOR_ROLE)

    ours = {use for use in used if use[1] != "nodes"}
    assert ours - rights((*SUPERVISOR, *WRAPPERS)) == {("jobset.x-k8s.io", "jobsets", "create")}
    assert rights(WRAPPERS) - used == set()


def may_create_jobsets(stage):
    """The right that a job of several roles needs on top (docs/guides/appwrapper.md)."""
    root = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{stage.namespace}"
    rules = [{"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["create"]}]
    stage.ask("POST", f"{root}/roles", {"metadata": {"name": "jobsets"}, "rules": rules})
    binding = {
        "metadata": {"name": "jobsets"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "jobsets"},
        "subjects": [{"kind": "ServiceAccount", "name": SUPERVISOR_ROLE, "namespace": stage.namespace}],
    }
    stage.ask("POST", f"{root}/rolebindings", binding)


async def wrapped_lives(backend, folder):
    """What a supervisor does for jobs in wrappers, on its own and in a queue."""
    async with submitted(backend, "queued", folder / "a", pods=1, queue="team") as job:
        await job.runs()
        await request_suspension(backend, "queued")
        await job.until(lambda record: record.phase is Phase.SUSPENDED)
        await request_resumption(backend, "queued")
        await job.runs(2)
    simple = {"launch": "simple", "image": "any:1", "instance_resources": {"gpus": 0}}
    roles = {
        "driver": {**simple, "entrypoint": {"command": ["true"]}},
        "server": {**simple, "entrypoint": {"command": ["sleep", "600"]}, "driver": False},
    }
    serving = backend.plan_as(load_job({"name": "serving", "roles": roles}, based=False), Kind.APPWRAPPER)
    async with submitted(backend, "serving", folder / "c", blueprint=serving) as job:
        record = await job.over()
        assert record is not None
        assert record.phase is Phase.SUCCEEDED
    async with submitted(backend, "bare", folder / "b", kind=Kind.PYTORCHJOB) as job:
        await job.runs()
        job.end(1, 3)
        await job.until(lambda record: record.attempt == 2)

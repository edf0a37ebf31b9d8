"""The Role that is printed for supervisors is what a supervisor needs, and no more."""

from __future__ import annotations

import dataclasses

import pytest

from rallypoint.backends.contract import BackendError, ConflictError
from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.backend import KubernetesBackend
from rallypoint.backends.kubernetes.names import SUPERVISOR_ROLE
from rallypoint.backends.kubernetes.rbac import SUPERVISOR, allows, rbac
from rallypoint.supervision.actions import CreateCoordinator, CreateNode, Purge, RemoveCoordinator, RemoveNode
from rallypoint.supervision.record import Phase
from tests.emulator.options import Options
from tests.emulator.running import running
from tests.kube.stage import KubernetesStage
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


@pytest.fixture
def guarded(tmp_path, home):
    """A cluster that enforces Roles, and in it a namespace to which the printed manifests were applied."""
    with running(Options(rbac=True)) as cluster:
        stage = KubernetesStage(tmp_path, cluster)
        for manifest in rbac(stage.namespace):
            group = manifest["apiVersion"]
            root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
            stage.ask("POST", f"{root}/namespaces/{stage.namespace}/{manifest['kind'].lower()}s", manifest)
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

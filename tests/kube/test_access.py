"""How a cluster is reached: by whom, with what, and what nobody may see of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from rallypoint.backends import registry
from rallypoint.backends.contract import BackendError
from rallypoint.backends.credentials import Credentials, CredentialsError
from rallypoint.backends.kubernetes.access import Access, load_configuration
from rallypoint.backends.kubernetes.client import KubeApi
from rallypoint.backends.site import Site
from tests.emulator.options import Options
from tests.emulator.running import Running, kubeconfig, running
from tests.waiting import PATIENCE, eventually, eventually_async

pytest.importorskip("kubernetes")

pytestmark = pytest.mark.may_block("kubeconfigs are read in a thread, which has a loop of its own for that")

SECRET = "canary-77b1"


def config(*, namespace: str = "ml", user: Any = None) -> dict[str, Any]:
    """A kubeconfig of two contexts."""
    found: dict[str, Any] = yaml.safe_load(kubeconfig("http://cluster:6443", SECRET))
    found["contexts"][0]["context"]["namespace"] = namespace
    found["contexts"].append({"name": "other", "context": {"cluster": "emulator", "user": "emulator", "namespace": "theirs"}})
    if user is not None:
        found["users"][0]["user"] = user
    return found


def inline(site: Site | None = None, **credentials: Any) -> Access:
    return registry.access_of(site or Site(kind="kubernetes"), Credentials(**credentials))


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["JSON", "YAML"])
def test_a_kubeconfig_that_is_a_text(write, monkeypatch):
    """It is read as the file would be, context and namespace too, whatever kubeconfig the machine has."""
    monkeypatch.setenv("KUBECONFIG", "/nowhere/else")
    text = write(config())

    access, other = inline(kubeconfig=text), inline(Site(kind="kubernetes", context="other"), kubeconfig=text)
    told = load_configuration(access)

    assert (access.namespace, other.namespace) == ("ml", "theirs")
    assert inline(Site(kind="kubernetes", namespace="mine"), kubeconfig=text).namespace == "mine"
    assert (told.host, told.api_key) == ("http://cluster:6443", {"BearerToken": f"Bearer {SECRET}"})
    assert told.verify_ssl
    assert SECRET not in f"{access!r} {access}"


def test_a_token_takes_the_place_of_what_else_authenticates():
    """Also of a client's certificate."""
    text = json.dumps(config(user={"username": "ann", "password": "x"}))

    told = load_configuration(inline(kubeconfig=text, token="of-the-connection", verify_ssl=False))

    assert told.api_key == {"BearerToken": "Bearer of-the-connection"}
    assert (told.cert_file, told.key_file, told.verify_ssl) == (None, None, False)


def test_in_cluster_is_the_cluster_of_this_pod_and_no_other(tmp_path, monkeypatch):
    """A kubeconfig that happens to be there is not read; outside of a pod there is none."""
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config()))
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(BackendError, match=r"no cluster found \(in_cluster: .*\), and this process does not run in a pod"):
        load_configuration(inline(Site(kind="kubernetes", namespace="ml"), in_cluster=True))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(f"token: [{SECRET}", "expected a kubeconfig as JSON or YAML", id="no YAML"),
        pytest.param(json.dumps([SECRET]), "expected a kubeconfig as JSON or YAML", id="no mapping"),
        pytest.param(json.dumps(config() | {"clusters": [{"name": SECRET}]}), "no cluster found", id="no cluster"),
        pytest.param(
            json.dumps(config(user={"exec": {"token": SECRET}}) | {"users": SECRET}), "no cluster found", id="no users"
        ),
        pytest.param(json.dumps(config(user={"auth-provider": {"name": "oidc"}})), "no cluster found", id="no login"),
    ],
)
@pytest.mark.parametrize("way", ["text", "file"])
def test_no_error_shows_what_a_kubeconfig_holds(text, says, way, tmp_path):
    """Whatever is wrong with it, and wherever it came from."""
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    given = Access(namespace="ml", kubeconfig=str(file))
    if way == "text":
        given = Access(namespace="ml", credentials=Credentials(kubeconfig=text))

    with pytest.raises(BackendError) as caught:
        load_configuration(given)

    assert SECRET not in f"{caught.value} {caught.value.__cause__}"
    assert re.search(says, str(caught.value)) or way == "file"


@pytest.mark.parametrize(
    ("proxy", "says"),
    [
        pytest.param(f"http://u:{SECRET}@127.0.0.1:PORT", "the proxy answered 407 No", id="refused"),
        pytest.param(f"http://u:{SECRET}@127.0.0.1:1", "Cannot connect to host 127.0.0.1:1", id="not there"),
        pytest.param(f"http://u:{SECRET}@127.0.0.1:65536", "kubeconfig: proxy-url: the value is not allowed", id="port"),
        pytest.param(f"http://u:1/{SECRET}@127.0.0.1:1", "kubeconfig: proxy-url: the value is not allowed", id="path"),
        pytest.param(f"ftp://u:{SECRET}@127.0.0.1:1", "kubeconfig: proxy-url: the value is not allowed", id="scheme"),
        pytest.param(SECRET, "kubeconfig: proxy-url: the value is not allowed", id="no URL"),
    ],
)
async def test_no_error_shows_the_password_of_a_proxy(proxy, says, tmp_path):
    """A kubeconfig in a file, whose secrets Airflow does not mask; also not as the cause in a traceback."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        given = config()
        url = proxy.replace("PORT", str(server.sockets[0].getsockname()[1]))
        given["clusters"][0]["cluster"] = {"server": "https://cluster.invalid:6443", "proxy-url": url}
        given["users"][0]["user"] = {"token": "x"}
        (tmp_path / "kubeconfig").write_text(json.dumps(given))
        api = KubeApi(Access(namespace="ml", kubeconfig=str(tmp_path / "kubeconfig")))
        try:
            for asked in (api.request("GET", "/version"), _opened(api, "/api/v1/pods")):
                with pytest.raises(BackendError) as caught:
                    await asked
                assert says in str(caught.value)
                assert SECRET not in "".join(traceback.format_exception(caught.value))
        finally:
            await api.close()


async def _opened(api: KubeApi, path: str) -> None:
    async with api.stream(path):
        pass


def test_credentials_travel_between_two_processes_and_are_refused_otherwise():
    """What was read instead is not shown."""
    given = Credentials(kubeconfig=f"token: {SECRET}", token=SECRET, verify_ssl=False)

    assert Credentials.from_json(given.to_json()) == given
    for text in (SECRET, "[]", json.dumps({"tokne": SECRET})):
        with pytest.raises(CredentialsError) as caught:
            Credentials.from_json(text)
        assert SECRET not in str(caught.value)


LOGIN = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
(folder / "asked").open("a").write("x")
token = (folder / "token").read_text()
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {"token": token}}))
"""


def logging_in(cluster: Running, folder: Path) -> KubeApi:
    """Return a client with an exec plug-in that returns an old token; the plug-in notes each call in the file `asked`."""
    (folder / "login.py").write_text(LOGIN)
    (folder / "token").write_text("of-yesterday")
    call = {"command": sys.executable, "args": ["-I", "-S", str(folder / "login.py"), str(folder)]}
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", **call}}
    text = config(user=user) | {"clusters": [{"name": "emulator", "cluster": {"server": cluster.url}}]}
    return KubeApi(Access(namespace="default", credentials=Credentials(kubeconfig=json.dumps(text))))


@pytest.mark.live
async def test_an_exec_plugin_is_asked_again_when_its_token_is_over(tmp_path):
    """The connection's own kubeconfig names it; a request that is refused for an old token is made again with a new one."""
    with running(Options(rbac=True, nodes=())) as cluster:
        api = logging_in(cluster, tmp_path)
        try:
            with pytest.raises(BackendError, match="401"):
                await api.request("GET", "/api/v1/namespaces/default")
            (tmp_path / "token").write_text(cluster.admin_token)
            found = json.loads(await api.request("GET", "/api/v1/namespaces/default"))
        finally:
            await api.close()

    assert found["metadata"]["name"] == "default"
    assert len((tmp_path / "asked").read_text()) >= 2


@pytest.mark.parametrize("command", ["/nowhere/login", "false"])
def test_an_exec_plugin_that_gives_nothing_is_named(command):
    """Else the cluster would only say that it does not know us."""
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": command}}

    with pytest.raises(
        BackendError, match=f"the exec plug-in '{command}' returned no credentials; check that the plug-in is installed"
    ):
        load_configuration(inline(kubeconfig=json.dumps(config(user=user))))


def waiting_plugin(folder: Path) -> dict[str, Any]:
    """A kubeconfig whose exec plug-in waits until the folder has a file `end`; it notes its process id."""
    script = f"echo $$ > {folder}/pid; while [ ! -e {folder}/end ]; do sleep 0.05; done; exit 1"
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}
    return config(user={"exec": plugin | {"interactiveMode": "Never"}})


@pytest.mark.live
def test_an_exec_plugin_that_waits_is_killed(tmp_path):
    """Fails if a plug-in that waits for a log-in keeps a thread for ever."""
    access, noted = inline(kubeconfig=json.dumps(waiting_plugin(tmp_path))), tmp_path / "pid"
    try:
        with pytest.raises(BackendError, match=r"no credentials within 2 s \(the connection's kube_config\); check that"):
            load_configuration(access, patience=2)
        pid = noted.read_text().strip()
        eventually(lambda: not Path(f"/proc/{pid}").exists(), why="the plug-in was killed")
    finally:
        (tmp_path / "end").touch()


@pytest.mark.live
async def test_an_exec_plugin_that_waits_keeps_threads_for_others(tmp_path):
    """Fails if plug-ins of a few jobs take all threads of a triggerer: no other trigger gets one, and no DNS."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    api = KubeApi(Access(namespace="default", credentials=Credentials(kubeconfig=json.dumps(waiting_plugin(tmp_path)))))
    request = asyncio.create_task(api.request("GET", "/version"))
    try:
        await eventually_async((tmp_path / "pid").exists, why="the plug-in runs")
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "run"), 10 * PATIENCE) == "run"
    finally:
        (tmp_path / "end").touch()
        with pytest.raises(BackendError, match="the exec plug-in 'sh' returned no credentials"):
            await request


@pytest.mark.parametrize("namespace", ["", "n"])
def test_a_kubeconfig_that_is_no_file_is_refused(tmp_path, namespace):
    """Fails if a named pipe without a writer blocks a thread, or if a file of any size is read."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * ((4 << 20) + 1))

    for name in ("pipe", "large"):
        site = Site(kind="kubernetes", namespace=namespace, kubeconfig=str(tmp_path / name))
        with pytest.raises(BackendError, match=f"{name}' is not allowed; expected a regular file of at most 4194304 bytes"):
            load_configuration(registry.access_of(site))


@pytest.mark.live
async def test_requests_that_are_refused_together_log_in_once(tmp_path):
    """Fails if each of many refused requests runs the exec plug-in."""
    with running(Options(rbac=True, nodes=())) as cluster:
        api = logging_in(cluster, tmp_path)
        try:
            requests = (api.request("GET", "/api/v1/namespaces/default") for _ in range(8))
            found = await asyncio.gather(*requests, return_exceptions=True)
        finally:
            await api.close()

    assert all(isinstance(one, BackendError) for one in found)
    assert len((tmp_path / "asked").read_text()) < 8


@pytest.mark.live
@pytest.mark.parametrize("probed", [True, False])
async def test_streams_that_are_silent_are_probed_unless_the_connection_says_otherwise(probed):
    """`disable_tcp_keepalive` of a kubernetes connection."""
    with running(Options(nodes=())) as cluster:
        text = kubeconfig(cluster.url, cluster.admin_token)
        given = Credentials(kubeconfig=text, tcp_keepalive=probed)
        api = KubeApi(Access(namespace="default", credentials=given))
        try:
            async with api.stream("/api/v1/namespaces/default/configmaps", query={"watch": "true"}):
                kept = _sockets_to(int(cluster.url.rpartition(":")[2]))
        finally:
            await api.close()

    assert kept == [probed]


def _sockets_to(port: int) -> list[bool]:
    """Whether each connection of this process to a port is probed."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            if not str(path.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as one:
                if one.family == socket.AF_INET and one.getpeername()[1] == port:
                    found.append(bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)))
        except OSError:  # closed meanwhile, or not connected
            continue
    return found


@pytest.mark.live
def test_a_supervisor_that_is_left_behind_gets_credentials_that_nobody_else_can_read(tmp_path, home):
    """They are in no argument, no variable and no file of it, and it supervises."""
    from tests.kube.stage import KubernetesStage
    from tests.waiting import eventually

    with running(Options()) as cluster:
        stage = KubernetesStage(tmp_path, cluster)
        text = kubeconfig(cluster.url, SECRET)
        site = Site(kind="kubernetes", namespace=stage.namespace)
        _submit(stage)
        pid = registry.spawn_supervisor("digits", site, Credentials(kubeconfig=text, token=cluster.admin_token))
        eventually(lambda: stage.pods("rallypoint.dev/part=node"), why=lambda: _said(home), timeout=120)

        about = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        files = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
        kept = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir() if "told" in str(path.readlink())]
        stage.delete_from_outside("digits")
        eventually(lambda: not Path(f"/proc/{pid}").exists(), why=lambda: _said(home), timeout=120)

    for secret in (SECRET, cluster.admin_token, text):
        assert secret.encode() not in about + files
    assert kept == []


def _submit(stage: Any) -> None:
    import asyncio

    async def submit() -> None:
        backend = stage.another()
        await backend.submit(backend.plan(stage.job()), owner="ann")
        await backend.close()

    asyncio.run(submit())


def _said(home: Path) -> str:
    return "".join(path.read_text() for path in home.rglob("*.log"))


# --- For a process that runs no program and reads no file ------------------------------------------------------------------


def static(**credentials: Any) -> Any:
    found = registry.static_access(Site(kind="kubernetes"), Credentials(**credentials))
    return load_configuration(registry.access_of(*found))


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["JSON", "YAML"])
def test_a_static_token_reaches_a_cluster(write):
    """Server, namespace and token of the context that is meant."""
    text = write(config())
    site, credentials = registry.static_access(Site(kind="kubernetes", context="other"), Credentials(kubeconfig=text))
    told = load_configuration(registry.access_of(site, credentials))

    assert (told.host, told.api_key, site.namespace) == ("http://cluster:6443", {"BearerToken": f"Bearer {SECRET}"}, "theirs")
    assert static(kubeconfig=text, token="of the connection").api_key == {"BearerToken": "Bearer of the connection"}


@pytest.mark.parametrize(
    "user",
    [
        pytest.param({"exec": {"command": sys.executable, "args": ["-c", "TOUCH"], "apiVersion": "v1"}}, id="an exec plug-in"),
        pytest.param({"auth-provider": {"name": "gcp", "config": {"cmd-path": "TOUCH"}}}, id="an auth provider"),
        pytest.param({"auth-provider": {"name": "oidc", "config": {"id-token": "a.b.c"}}}, id="a token that is renewed"),
        pytest.param({"tokenFile": "FILE"}, id="a file with a token"),
        pytest.param({"client-certificate": "FILE", "client-key": "FILE"}, id="files with a key"),
        pytest.param({"username": "a", "password": "b"}, id="a password"),
        pytest.param({"token": ["a"]}, id="a token that is none"),
        pytest.param({}, id="nobody"),
    ],
)
@pytest.mark.parametrize("token", ["", "static"], ids=["alone", "beside a token"])
def test_nothing_is_run_and_nothing_is_read(user, token, tmp_path):
    """Without a token of its own it is refused; with one, everything else is left out."""
    (tmp_path / "secret").write_text(SECRET)
    touch = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()"
    text = json.dumps(config(user=user)).replace("TOUCH", touch.replace('"', "'")).replace("FILE", str(tmp_path / "secret"))
    cluster = json.loads(text)
    cluster["clusters"][0]["cluster"] |= {"certificate-authority": str(tmp_path / "secret"), "proxy-url": "http://elsewhere"}
    if token:
        told = static(kubeconfig=json.dumps(cluster), token=token)
        assert told.api_key == {"BearerToken": "Bearer static"}
        assert (told.cert_file, told.key_file, told.ssl_ca_cert, told.proxy) == (None, None, None, None)
    else:
        with pytest.raises(BackendError, match="runs no plug-ins and reads no files") as refused:
            static(kubeconfig=json.dumps(cluster))
        assert SECRET not in str(refused.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("site", "says"),
    [
        (Site(kind="kubernetes", kubeconfig="/k"), "kube_config_path: '/k'"),
        (Site(kind="kubernetes", context="c"), "cluster_context: 'c'"),
        (Site(home="/elsewhere"), "home: '/elsewhere'"),
    ],
)
def test_paths_of_others_are_refused(site, says):
    """By their names."""
    with pytest.raises(BackendError, match=re.escape(says)):
        registry.static_access(site)


def test_without_a_kubeconfig_the_pod_is_meant(monkeypatch, tmp_path):
    """And never the kubeconfig that lies around, which may name a plug-in."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "k"))
    _, credentials = registry.static_access(Site(kind="kubernetes"))

    assert credentials.in_cluster

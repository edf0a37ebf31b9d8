"""Tokens and rights, and the record of what was made use of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.emulator.options import Options
from tests.emulator.running import Running, running
from tests.emulator_tests.calls import Calls, config_map

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(Options(nodes=(), rbac=True, namespaces=("default", "other"))) as emulator:
        yield emulator


@pytest.fixture
def admin(server):
    return Calls(server=server, namespace="default", token=server.admin_token)


@pytest.fixture
def account(server, admin):
    """A service account that may get ConfigMaps, the log of pods, and the one Secret `known`."""
    name = f"account-{next(_NUMBERS)}"
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["known"], "verbs": ["get"]},
    ]
    assert admin.create("serviceaccounts", {"metadata": {"name": name}})[0] == 201
    assert admin.create("roles", {"metadata": {"name": name}, "rules": rules})[0] == 201
    binding = {
        "metadata": {"name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
    }
    assert admin.create("rolebindings", binding)[0] == 201
    return Calls(server=server, namespace="default", token=server.token(account=name))


@pytest.mark.parametrize("token", ["", "made-up"])
def test_strangers_are_refused(server, token):
    """401 without a token that is somebody's."""
    path = "/api/v1/namespaces/default/pods"

    assert server.request("GET", path, token=token)[0] in {401, 403}


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        pytest.param("GET", "/api/v1/namespaces/default/configmaps/none", 404, id="granted"),
        pytest.param("DELETE", "/api/v1/namespaces/default/configmaps/none", 403, id="another verb"),
        pytest.param("GET", "/api/v1/namespaces/other/configmaps/none", 403, id="another namespace"),
        pytest.param("GET", "/api/v1/configmaps", 403, id="all namespaces"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/none", 403, id="another kind"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/none/log", 404, id="a subresource"),
        pytest.param("GET", "/api/v1/namespaces/default/secrets/known", 404, id="one by its name"),
        pytest.param("GET", "/api/v1/namespaces/default/secrets/other", 403, id="another name"),
    ],
)
def test_a_role_grants_what_it_says(account, method, path, code):
    """404 means that one may ask."""
    assert account.server.request(method, path, token=account.token)[0] == code


def test_a_refusal_names_who_may_not_do_what(account):
    """The message is that of the real server."""
    _, status = account.create("configmaps", config_map("one"))

    assert status["reason"] == "Forbidden"
    assert 'cannot create resource "configmaps" in API group "" in the namespace "default"' in status["message"]


@pytest.mark.parametrize(
    ("verb", "may"), [pytest.param("list", True, id="granted"), pytest.param("create", False, id="not granted")]
)
def test_one_can_ask_what_one_may(account, verb, may):
    """SelfSubjectAccessReview answers for who asks."""
    body = {"spec": {"resourceAttributes": {"namespace": "default", "verb": verb, "resource": "configmaps"}}}

    code, told = account.server.request(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, token=account.token
    )

    assert (code, told["status"]["allowed"]) == (201, may)


def test_every_use_of_a_right_is_on_record(account):
    """So that what was used can be compared with what was granted."""
    account.server.forget_uses()
    account.get("configmaps", "one")
    account.create("configmaps", config_map("two"))
    who = account.server.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=account.token)[1]
    name = who["status"]["userInfo"]["username"]

    uses = {(use["verb"], use["resource"], use["allowed"]) for use in account.server.uses(user=name)}

    assert {("get", "configmaps", True), ("create", "configmaps", False)} <= uses


def test_a_token_can_be_asked_for(admin):
    """The token subresource of a service account."""
    code, told = admin.server.request(
        "POST", admin.path("serviceaccounts", "default", "token"), {"spec": {}}, token=admin.token
    )

    assert (code, told["status"]["token"]) == (201, admin.server.token(account="default"))

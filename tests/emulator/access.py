"""Who asks, whether they may, and what they asked: bearer tokens, and Roles with their bindings."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.emulator.bodies import Body
from tests.emulator.errors import ApiError, forbidden
from tests.emulator.paths import Asked
from tests.emulator.store import Change, Store

__all__ = ["ADMIN", "Access", "Use", "User"]

RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, kw_only=True)
class User:
    """One who sends requests."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, order=True)
class Use:
    """A right that somebody made use of, or tried to."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    allowed: bool


ADMIN = User(name="kubernetes-admin", groups=("system:masters", "system:authenticated"))
NOBODY = User(name="system:anonymous", groups=("system:unauthenticated",))


@dataclass
class Access:
    """Tokens and rights. Where `enforce` is off everybody may do everything, and uses are noted all the same."""

    store: Store
    enforce: bool = False
    admin_token: str = field(default_factory=lambda: f"admin-{uuid.uuid4().hex}")
    uses: set[Use] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._users: dict[str, User] = {self.admin_token: ADMIN}
        self._accounts: dict[tuple[str, str], str] = {}
        self.store.listeners.append(self._noted)

    def token_of(self, namespace: str, account: str) -> str:
        """The token of a service account; ApiError 404 where there is no such account."""
        if (namespace, account) not in self._accounts:
            raise ApiError(404, "NotFound", f'serviceaccounts "{account}" not found')
        return self._accounts[namespace, account]

    def user_of(self, authorization: str) -> User:
        """Whose token that is; 401 for a token that is nobody's, and for none where rights are enforced."""
        kind, _, token = authorization.partition(" ")
        if kind.lower() == "bearer" and token:
            if token.strip() not in self._users:
                raise ApiError(401, "Unauthorized", "Unauthorized")
            return self._users[token.strip()]
        return NOBODY if self.enforce else ADMIN

    def check(self, user: User, asked: Asked) -> None:
        """Note the use; 403 where the user may not."""
        may = self.allowed(user, asked.verb, asked.resource.group, asked.target, asked.namespace, asked.name)
        self.uses.add(
            Use(
                user=user.name,
                verb=asked.verb,
                group=asked.resource.group,
                resource=asked.target,
                namespace=asked.namespace,
                name=asked.name,
                allowed=may,
            )
        )
        if not may:
            where = f' in the namespace "{asked.namespace}"' if asked.namespace else " at the cluster scope"
            what = f'cannot {asked.verb} resource "{asked.target}" in API group "{asked.resource.group}"{where}'
            raise forbidden(asked.resource, asked.name, f'User "{user.name}" {what}')

    def allowed(self, user: User, verb: str, group: str, resource: str, namespace: str, name: str = "") -> bool:
        if not self.enforce or "system:masters" in user.groups:
            return True
        if resource in {"selfsubjectaccessreviews", "selfsubjectreviews"}:
            return "system:authenticated" in user.groups
        return any(_grants(rule, verb, group, resource, name) for rule in self._rules(user, namespace))

    def _rules(self, user: User, namespace: str) -> Iterator[Body]:
        bindings = [(f"clusterrolebindings.{RBAC}", "")]
        if namespace:
            bindings.append((f"rolebindings.{RBAC}", namespace))
        for key, home in bindings:
            for binding in self.store.all(key, home):
                if any(_is(subject, user, home) for subject in binding.body.get("subjects") or []):
                    yield from self._role(binding.body.get("roleRef") or {}, home)

    def _role(self, reference: Body, namespace: str) -> list[Body]:
        cluster = reference.get("kind") == "ClusterRole"
        key, home = (f"clusterroles.{RBAC}", "") if cluster else (f"roles.{RBAC}", namespace)
        found = self.store.get(key, home, reference.get("name", ""))
        return (found.body.get("rules") or []) if found else []

    def _noted(self, change: Change) -> None:
        if change.now.key != "serviceaccounts":
            return
        place = change.now.namespace, change.now.name
        if change.type == "ADDED":
            token = f"account-{uuid.uuid4().hex}"
            namespace, name = place
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
            self._accounts[place] = token
            self._users[token] = User(name=f"system:serviceaccount:{namespace}:{name}", groups=groups)
        elif change.type == "DELETED":
            self._users.pop(self._accounts.pop(place, ""), None)


def _is(subject: Body, user: User, home: str) -> bool:
    if subject.get("kind") == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace') or home}:{subject['name']}"
    return subject.get("name") in (user.groups if subject.get("kind") == "Group" else (user.name,))


def _grants(rule: Body, verb: str, group: str, resource: str, name: str) -> bool:
    names = rule.get("resourceNames") or []
    kinds = {resource, "*", f"*/{resource.partition('/')[2]}" if "/" in resource else "*"}
    return (
        bool({verb, "*"} & set(rule.get("verbs") or []))
        and bool({group, "*"} & set(rule.get("apiGroups") or []))
        and bool(kinds & set(rule.get("resources") or []))
        and (not names or name in names)
    )

"""The forms of a document - one role at the top level, a list, or a mapping of roles - and paths in errors. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rallypoint.job.errors import JobError, Problem, Step, show
from rallypoint.job.role import Role

__all__ = ["ROLE_KEYS", "Form", "Shape", "normal"]

#: What a role has at the top level when it is written short; labels and annotations there are the job's.
ROLE_KEYS = tuple(name for name in Role.model_fields if name not in {"name", "labels", "annotations"})

_ROLES = "roles"


class Form(enum.Enum):
    """Where the roles are written."""

    SHORT = "short"
    LIST = "list"
    MAPPING = "mapping"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The form of a document; `names` are the keys of a mapping of roles, in order."""

    form: Form
    names: tuple[str, ...] = ()

    def place(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Return the path in the document of a path in the normal form, where roles are a list."""
        if len(steps) < 2 or steps[0] != _ROLES or self.form is Form.LIST:
            return tuple(steps)
        if self.form is Form.SHORT:
            return tuple(steps[2:])
        rest = steps[2:] if steps[2:] != ("name",) else ()
        return (_ROLES, self.names[int(steps[1])], *rest)


def normal(document: Any) -> tuple[dict[str, Any], Shape]:
    """Return the document with its roles as a list under `roles`, and the form it came in.

    Raises `JobError` when it is no mapping, or when its roles are written in two ways at once.
    """
    if not isinstance(document, Mapping):
        raise _refuse("job", f"{show(document)} is not allowed; expected a mapping with name and entrypoint")
    short = {key: document[key] for key in ROLE_KEYS if key in document}
    rest = {key: value for key, value in document.items() if key not in short}
    if _ROLES not in document:
        return {**rest, _ROLES: [short]}, Shape(form=Form.SHORT)
    if short:
        raise _refuse(
            _ROLES,
            f"the document has the key roles, so these keys must be inside a role: {', '.join(short)}",
        )
    if not isinstance(document[_ROLES], Mapping):
        return rest, Shape(form=Form.LIST)
    named = document[_ROLES]
    return {**rest, _ROLES: [_named(name, role) for name, role in named.items()]}, _mapping_shape(named)


def _mapping_shape(named: Mapping[Any, Any]) -> Shape:
    return Shape(form=Form.MAPPING, names=tuple(map(str, named)))


def _named(name: Any, role: Any) -> Any:
    if not isinstance(role, Mapping):
        return role
    if role.get("name", name) != name:
        raise _refuse(
            f"{_ROLES}.{name}.name",
            f"{show(role['name'])} is not allowed, because the key of this role in roles is already its name ({name!r}); "
            "omit name",
        )
    return {"name": name, **role}


def _refuse(path: str, text: str) -> JobError:
    return JobError([Problem(path=path, text=text)])

"""The settings that are lists of things, or things with parts of their own. Keys are the chart's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator
from typing_extensions import Self

from rallypoint.job.generator.rules import (
    FLAG,
    KEY,
    LABEL,
    LABEL_KEY,
    LABEL_VALUE,
    MOUNT_PATH,
    PART_NAME,
    STORAGE,
    TEXT,
    VALUE,
    VARIABLE,
    WORD,
    WORDS,
    nullable,
)
from rallypoint.job.part import Model
from rallypoint.job.rules import refusal

__all__ = ["ClaimVolume", "CustomLabel", "GitSsh", "InitContainer", "Nvme", "PullSecret", "Source", "Variable"]


class CustomLabel(Model):
    """One label, for the AppWrapper, the PyTorchJob, its pods and the PodGroup where there is one."""

    key: Annotated[str, LABEL_KEY]
    value: Annotated[str, LABEL_VALUE]


class PullSecret(Model):
    """A secret for pulling images."""

    name: Annotated[str, WORD]


class KeyOf(Model):
    """One key of a secret or of a ConfigMap."""

    name: Annotated[str, WORD]
    key: Annotated[str, KEY]


class Variable(Model):
    """A variable: a literal, or a key of a secret or of a ConfigMap. The first that is given counts, in this order."""

    name: Annotated[str, VARIABLE]
    value: Annotated[str | None, nullable(VALUE)] = None
    secret: KeyOf | None = None
    configmap: KeyOf | None = None

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.value is None and self.secret is None and self.configmap is None:
            raise refusal("a value ('' for an empty one), or a secret or configmap with its name and key", at="value")
        return self

    @property
    def unused(self) -> tuple[str, ...]:
        """The sources that are given and do not count."""
        given = [name for name in ("value", "secret", "configmap") if getattr(self, name) is not None]
        return tuple(given[1:])


class _Reference(Model):
    name: Annotated[str, WORD]
    optional: Annotated[bool | None, nullable(FLAG)] = None


class Source(Model):
    """All keys of one secret or of one ConfigMap as variables: an item of Kubernetes' `envFrom`."""

    secret_ref: _Reference | None = Field(default=None, alias="secretRef")
    config_map_ref: _Reference | None = Field(default=None, alias="configMapRef")
    prefix: Annotated[str | None, nullable(TEXT)] = None

    @model_validator(mode="before")
    @classmethod
    def _not_as_in_the_example(cls, data: Any) -> Any:
        # The chart's own example has the name beside the reference, which Kubernetes refuses.
        if isinstance(data, Mapping) and "name" in data:
            raise refusal("the name inside the reference, as in {secretRef: {name: NAME}}", at="name", value=data["name"])
        return data

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if (self.secret_ref is None) == (self.config_map_ref is None):
            raise refusal("one of secretRef and configMapRef, as in {secretRef: {name: NAME}}", value=self.document)
        return self

    @property
    def document(self) -> dict[str, Any]:
        """The item as Kubernetes has it."""
        return self.model_dump(by_alias=True, exclude_none=True)


class GitSsh(Model):
    """The key and the known hosts with which setup commands clone private repositories."""

    secret_name: Annotated[str, LABEL] = Field(alias="secretName")
    config_map_name: Annotated[str, LABEL] = Field(alias="configMapName")
    secret_mount_path: Annotated[str | None, nullable(MOUNT_PATH)] = Field(default=None, alias="secretMountPath")
    config_map_mount_path: Annotated[str | None, nullable(MOUNT_PATH)] = Field(default=None, alias="configMapMountPath")
    ssh_cmd: Annotated[str | None, nullable(TEXT)] = Field(default=None, alias="sshCmd")


class ClaimVolume(Model):
    """A persistent volume claim, and where it is mounted."""

    name: Annotated[str, PART_NAME]
    claim_name: Annotated[str, WORD] = Field(alias="claimName")
    mount_path: Annotated[str, MOUNT_PATH] = Field(alias="mountPath")


class Nvme(Model):
    """A volume on the node's own disks, made with the pod and gone with it."""

    storage: Annotated[str, STORAGE]
    mount_path: Annotated[str | None, nullable(MOUNT_PATH)] = Field(default=None, alias="mountPath")


class InitContainer(Model):
    """A container that runs to its end before the job's own."""

    name: Annotated[str, PART_NAME]
    image: Annotated[str, WORD]
    command: Annotated[tuple[str, ...], WORDS]

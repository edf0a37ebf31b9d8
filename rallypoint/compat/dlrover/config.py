"""A built job under DLRover's names: its roles as workloads, and the settings of a submission."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.compat.dlrover.enums import ACCELERATOR_TYPE, DLStreamType
from rallypoint.compat.dlrover.workload_desc import BaseWorkloadDesc, ElasticWorkloadDesc, ResourceDesc, SimpleWorkloadDesc
from rallypoint.job.builder import Job
from rallypoint.job.builder.calls import JobCalls
from rallypoint.job.builder.settings import SETTINGS, Given

__all__ = ["ACCELERATOR_TYPE", "DLConfig", "JobConfig", "workloads_of"]

#: DLRover's name of an elastic role without one; ours is `elastic`.
_UNNAMED = "ELASTIC"


@dataclass(frozen=True)
class DLConfig:
    """A built job. `job` is ours; it is what runs."""

    job: Job
    workloads: Mapping[str, BaseWorkloadDesc]
    collocations: list[set[str]]
    user_config: Mapping[str, Any]
    global_envs: Mapping[str, str]
    stream_type = DLStreamType.TASK_STREAM

    @property
    def _cluster(self) -> Mapping[str, Any]:
        cluster: Mapping[str, Any] = self.job.to_document()["cluster"]
        return cluster

    @property
    def node_number(self) -> int:
        """Machines."""
        return int(self._cluster["nodes"])

    @property
    def device_per_node(self) -> int:
        """Devices of each."""
        return int(self._cluster["devices_per_node"])

    @property
    def accelerator_type(self) -> ACCELERATOR_TYPE:
        """What a device is."""
        return ACCELERATOR_TYPE(str(self._cluster["device_type"]).upper())


@dataclass(kw_only=True)
class JobConfig:
    """A submission. `given` are the settings that are not defaults."""

    dl_config: DLConfig
    job_name: str
    given: Given

    def __getattr__(self, name: str) -> Any:
        if name not in SETTINGS:
            raise AttributeError(name)
        default = SETTINGS[name].default
        return self.given.values.get(name, "" if default is None else default)


def workloads_of(job: Job, calls: JobCalls) -> tuple[dict[str, BaseWorkloadDesc], list[set[str]]]:
    """Return the roles and collocations of a job under the names that were written."""
    document = job.to_document()
    roles = document.get("roles") or {"": document}
    groups = [group["roles"] for group in document.get("groups", ())]
    written = {role.name or (_UNNAMED.lower() if "roles" in document else ""): role for role in calls.roles}
    names = {name: role.written or _UNNAMED for name, role in written.items()}
    found: dict[str, BaseWorkloadDesc] = {}
    for name, role in roles.items():
        at = next((index for index, members in enumerate(groups) if name in members), None)
        said = written[name]
        fields: dict[str, Any] = {
            "entry_point": _entry_point(role),
            "total": _total(role),
            "per_group": role.get("per_group") or role.get("nproc_per_node", 1),
            "envs": {key: str(value) for key, value in said.env.items() if value is not None},
            "resource": _resource(role, None if at is None else len(groups[at])),
            "is_driver": said.driver,
            "group": None if at is None else f"collocation_{at}",
        }
        # Without validation: the builder has checked the role, and accepts more entrypoints and sizes than DLRover.
        found[names[name]] = (
            ElasticWorkloadDesc.model_construct(
                **fields,
                comm_pre_check=calls.node_check and bool(document.get("health", {}).get("network_check")),
                comm_auto_setup_process_group=calls.process_group,
            )
            if said.elastic
            else SimpleWorkloadDesc.model_construct(**fields)
        )
    return found, [{names[name] for name in members} for members in groups]


def _entry_point(role: Mapping[str, Any]) -> str:
    entry = role["entrypoint"]
    words = entry if isinstance(entry, list) else [entry["script"]] if isinstance(entry, dict) else [entry.replace(":", ".")]
    return " ".join(map(str, (*words, *role.get("args", ()))))


def _total(role: Mapping[str, Any]) -> int:
    if "total" in role:
        return int(role["total"])
    return int(str(role.get("nodes", 1)).rpartition(":")[2]) * int(role.get("nproc_per_node", 1))


def _resource(role: Mapping[str, Any], members: int | None) -> ResourceDesc:
    needs = copy.deepcopy(role.get("instance_resources", {}))
    share = round(1 / members, 2) if members else 0.0
    top, _, bottom = str(needs.get("gpus", share)).partition("/")
    return ResourceDesc.model_construct(
        cpu=float(needs.get("cpu", 0)),
        memory=int(str(needs.get("memory", "0")).removesuffix("Mi")),
        disk=int(str(needs.get("disk", "0")).removesuffix("Mi")),
        accelerator=float(top) / float(bottom or 1),
        user_defined=needs.get("user_defined", {}),
    )

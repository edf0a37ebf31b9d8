"""`Settings`: a settings.yaml of the pytorchjob-generator, every key of its charts 1.1.5 to 1.1.12 and a few of our own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rallypoint.job.generator.parts import ClaimVolume, CustomLabel, GitSsh, InitContainer, Nvme, PullSecret, Source, Variable
from rallypoint.job.generator.rules import (
    COMMAND,
    CPU,
    FLAG,
    HOST,
    JOB_NAME,
    LABEL,
    LABEL_NAME,
    LINE,
    MEMORY,
    NULL_IS_EMPTY,
    RESOURCE_NAME,
    RESTART_POLICY,
    SCHEDULER,
    TEXT,
    WORD,
    count,
    nullable,
    one_word_of,
    period,
)
from rallypoint.job.part import Model
from rallypoint.job.rules import LIST

__all__ = ["Settings"]

_PULL_POLICY = one_word_of("IfNotPresent", "Always", "Never")
_PRIORITY = one_word_of("default-priority", "low-priority", "high-priority")


class Settings(Model):
    """The settings of one job. null takes back what may be unset; `queue_name` None is no queue."""

    # Job metadata
    job_name: Annotated[str, JOB_NAME] = Field(alias="jobName")
    namespace: Annotated[str | None, nullable(LABEL)] = None
    queue_name: Annotated[str | None, nullable(LABEL)] = Field(default="default-queue", alias="queueName")
    priority: Annotated[str, _PRIORITY] = "default-priority"
    custom_labels: Annotated[tuple[CustomLabel, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="customLabels")
    container_image: Annotated[str, WORD] = Field(alias="containerImage")
    image_pull_secrets: Annotated[tuple[PullSecret, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="imagePullSecrets")
    image_pull_policy: Annotated[str | None, nullable(_PULL_POLICY)] = Field(default=None, alias="imagePullPolicy")

    # Resource requirements
    num_pods: Annotated[int, count(1)] = Field(default=1, alias="numPods")
    num_cpus: Annotated[str | int, CPU] = Field(default=1, alias="numCpusPerPod")
    num_gpus: Annotated[int, count(0)] = Field(default=0, alias="numGpusPerPod")
    memory: Annotated[str, MEMORY] = Field(default="1Gi", alias="totalMemoryPerPod")
    limit_cpus: Annotated[str | int | None, nullable(CPU)] = Field(default=None, alias="limitCpusPerPod")
    limit_gpus: Annotated[int | None, nullable(count(0))] = Field(default=None, alias="limitGpusPerPod")
    limit_memory: Annotated[str | None, nullable(MEMORY)] = Field(default=None, alias="limitMemoryPerPod")

    # Workload specification
    variables: Annotated[tuple[Variable, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="environmentVariables")
    sources: Annotated[tuple[Source, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="envFrom")
    git_ssh: GitSsh | None = Field(default=None, alias="sshGitCloneConfig")
    setup_commands: Annotated[tuple[Annotated[str, COMMAND], ...], LIST, NULL_IS_EMPTY] = Field(
        default=(), alias="setupCommands"
    )
    main_program: Annotated[str | None, nullable(LINE)] = Field(default=None, alias="mainProgram")
    volumes: Annotated[tuple[ClaimVolume, ...], LIST, NULL_IS_EMPTY] = ()

    # Advanced options
    roce_name: Annotated[str | None, nullable(RESOURCE_NAME)] = Field(default=None, alias="roceGdrResName")
    num_roce: Annotated[int, count(0)] = Field(default=0, alias="numRoceGdr")
    topology_map: Annotated[str | None, nullable(LABEL)] = Field(default=None, alias="topologyFileConfigMap")
    nccl_map: Annotated[str | None, nullable(LABEL)] = Field(default=None, alias="ncclGdrEnvConfigMap")
    network: Annotated[str | None, nullable(TEXT)] = Field(default=None, alias="multiNicNetworkName")
    disable_shared_memory: Annotated[bool, FLAG] = Field(default=False, alias="disableSharedMemory")
    nvme: Nvme | None = Field(default=None, alias="mountNVMe")
    init_containers: Annotated[tuple[InitContainer, ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="initContainers")
    health_checks: Annotated[tuple[Annotated[str, LABEL_NAME], ...], LIST, NULL_IS_EMPTY] = Field(
        default=(), alias="autopilotHealthChecks"
    )
    ignored_hosts: Annotated[tuple[Annotated[str, HOST], ...], LIST, NULL_IS_EMPTY] = Field(default=(), alias="hostIgnoreList")
    scheduler_name: Annotated[str | None, nullable(SCHEDULER)] = Field(default=None, alias="schedulerName")
    bypass_coscheduler: Annotated[bool | None, nullable(FLAG)] = Field(default=None, alias="bypassCoscheduler")
    service_account: Annotated[str | None, nullable(LABEL)] = Field(default=None, alias="serviceAccountName")

    # Fault tolerance
    admission_grace: Annotated[str | None, nullable(period("admissionGracePeriodDuration"))] = Field(
        default=None, alias="admissionGracePeriodDuration"
    )
    warmup_grace: Annotated[str | None, nullable(period("warmupGracePeriodDuration"))] = Field(
        default=None, alias="warmupGracePeriodDuration"
    )
    failure_grace: Annotated[str | None, nullable(period("failureGracePeriodDuration"))] = Field(
        default=None, alias="failureGracePeriodDuration"
    )
    retry_pause: Annotated[str | None, nullable(period("retryPausePeriodDuration"))] = Field(
        default=None, alias="retryPausePeriodDuration"
    )
    retry_limit: Annotated[int | None, nullable(count(0, 100))] = Field(default=None, alias="retryLimit")
    forceful_deletion_grace: Annotated[str | None, nullable(period("forcefulDeletionGracePeriodDuration"))] = Field(
        default=None, alias="forcefulDeletionGracePeriodDuration"
    )
    deletion_on_failure_grace: Annotated[str | None, nullable(period("deletionOnFailureGracePeriodDuration"))] = Field(
        default=None, alias="deletionOnFailureGracePeriodDuration"
    )
    success_ttl: Annotated[str | None, nullable(period("successTTLDuration"))] = Field(default=None, alias="successTTLDuration")
    restart_policy: Annotated[str, RESTART_POLICY] = Field(default="Never", alias="restartPolicy")
    termination_grace: Annotated[int | None, nullable(count(0))] = Field(default=None, alias="terminationGracePeriodSeconds")

    # Ours
    elastic: Annotated[bool, FLAG] = False
    min_pods: Annotated[int | None, nullable(count(1))] = Field(default=None, alias="minPods")
    max_restarts: Annotated[int | None, nullable(count(0))] = Field(default=None, alias="maxRestarts")
    insecure_token: Annotated[bool, FLAG] = Field(default=False, alias="insecureToken")
    pod_group: Annotated[bool, FLAG] = Field(default=False, alias="podGroup")

    @property
    def scheduler(self) -> str:
        """Name of the pods' scheduler; "" is the cluster's own choice."""
        return "default-scheduler" if self.bypass_coscheduler else self.scheduler_name or ""

    @property
    def least_pods(self) -> int:
        """MIN of an elastic job; all pods of another one."""
        return (self.min_pods or 1) if self.elastic else self.num_pods

    @property
    def workers_per_pod(self) -> int:
        """Processes on each pod: one for each GPU, or one."""
        return self.num_gpus or 1

"""The roles of a job on its page: a part for each, its figures, and where its logs are. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from rallypoint.backends.site import Site
from rallypoint.report.format import counted
from rallypoint.report.model import Story
from rallypoint.report.page.values import Fact, Fault, LogPlace, Page, RoleInstance, RolePart
from rallypoint.report.page.view import as_of, elastic_facts, faults_shown, nodes_and_curves, page_of
from rallypoint.report.roles import RoleJob, RoleStory, faults_of, job_headline, role_stories
from rallypoint.report.story import story_of
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Cause, Incident
from rallypoint.wire.plan import Plan

__all__ = ["roles_as_of", "roles_page"]

#: Instances of one role that are shown, and logs of one role that are offered.
_INSTANCES, _LOGS = 256, 4


def _parts(roles: tuple[RoleStory, ...]) -> Iterator[RolePart]:
    """Yield the part of each role."""
    for role in roles:
        part = RolePart(
            name=role.name,
            launch="elastic" if role.elastic else "simple",
            driver=role.driver,
            state=role.headline.state,
            mood=role.headline.mood,
            title=role.headline.title,
            instances=tuple(RoleInstance(**dataclasses.asdict(one)) for one in role.instances[:_INSTANCES]),
            facts=tuple(_simple_facts(role)),
        )
        yield part if role.story is None else _with_story(part, role.story)


def _with_story(part: RolePart, story: Story) -> RolePart:
    nodes, curves = nodes_and_curves(story)
    return dataclasses.replace(part, facts=elastic_facts(story), faults=faults_shown(story), nodes=nodes, curves=curves)


def _simple_facts(role: RoleStory) -> Iterator[Fact]:
    if role.elastic:
        yield Fact(label="Workers", text=str(role.total))
        return
    running = sum(one.state == "running" for one in role.instances)
    yield Fact(label="Instances", text=str(role.total), note=f"{running} running")
    yield Fact(label="Restarts", text=str(role.restarts), note="of single instances")
    yield Fact(label="Resets", text=str(role.resets), note="of the whole role")


def _facts(story: Story, roles: tuple[RoleStory, ...]) -> Iterator[Fact]:
    """Yield the figures of the whole job."""
    record, faults = story.record, faults_of(story, roles)
    drivers = sum(role.driver for role in roles)
    yield Fact(label="Roles", text=str(len(roles)), note=counted(drivers, "driver"))
    yield Fact(label="Processes", text=str(sum(role.total for role in roles)), note="instances and workers")
    yield Fact(label="Attempt", text=str(record.attempt) if record.attempt else "-", note=counted(record.retries, "reset"))
    yield Fact(label="Faults", text=str(faults), note="of all roles" if faults else "none yet")


def _logs(story: Story, roles: tuple[RoleStory, ...], site: Site | None) -> Iterator[LogPlace]:
    """Yield the logs of each role: of the instances that failed first, newest first, and of the first instance."""
    base = "" if site is None else " ".join(("rallypoint", "logs", story.record.name, *site.options()))
    for role in roles:
        # Of a simple role the job's own incidents say which instance it was: their reasons begin with its name.
        own = (i for i in story.details if i.reason.startswith(f"{role.name} ")) if role.story is None else role.story.details
        newest = sorted((i for i in own if i.culprit is not None), key=lambda i: -i.detected_at)
        ranks = [i.culprit.rank for i in newest if i.culprit is not None and i.culprit.rank >= 0]
        for rank in dict.fromkeys([*ranks[: _LOGS - 1], 0] if role.total else []):
            command = f"{base} --role {role.name} --rank {rank}" if base else ""
            yield LogPlace(rank=rank, label=f"{role.name} {rank}", command=command, role=role.name)


#: What is started again, by the rule of an incident of an instance.
_AGAIN = {"instance": "restart instance", "role": "restart role", "job": "reset job", "none": "end job"}


def _of_instance(fault: Fault, incident: Incident) -> Fault:
    """Return an incident of a job with several roles, with instances instead of workers in its texts."""
    cause = {Cause.PROCESS: "Instance failed", Cause.NODE: "Instance lost"}.get(incident.cause)
    if incident.rule not in _AGAIN or cause is None:
        return fault
    return dataclasses.replace(fault, cause=cause, rung=_AGAIN[incident.rule], where="")


def roles_page(
    record: JobRecord,
    plan: Plan,
    jobs: Iterable[RoleJob],
    *,
    now: float,
    site: Site | None = None,
    tries: Mapping[str, int] | None = None,
    label: str = "",
) -> Page:
    """Return the page of a job with several roles; the arguments are those of `page_of`, and `jobs` its elastic roles."""
    page = page_of(record, None, now=now, site=site, tries=tries, label=label)
    story = story_of(record, None, now=now, plan=plan, tries=tries)
    roles = role_stories(record, plan, jobs, now=now)
    told = job_headline(story, roles)
    return dataclasses.replace(
        page,
        state=told.state,
        mood=told.mood,
        title=told.title,
        advice=told.advice,
        live=told.live,
        facts=tuple(_facts(story, roles)),
        faults=tuple(map(_of_instance, page.faults, story.details[-len(page.faults) :])),
        goodput=None,
        logs=tuple(_logs(story, roles, site)),
        roles=tuple(_parts(roles)),
    )


def roles_as_of(record: JobRecord, jobs: Iterable[RoleJob]) -> float:
    """Return the time of the newest data about a job or its elastic roles."""
    return max([as_of(record, None), *(as_of(job.record, job.status) for job in jobs if not record.finished)])

"""Graceful fault tolerance of MindCluster beside the recovery of processes: the whole job is rescheduled instead. Pure.

Both cannot be in use at once. That the other one is, is told by the job, or by an entry in the reset file, which every agent
sees (`AgentReport.tolerance`). Then no process is recovered: as in MindCluster the agent of rank 0 leaves, and a pod of rank 0
that is gone has the scheduler delete all (supervision/scheduling.py).
"""

from __future__ import annotations

import dataclasses

from rallypoint.agent.rendezvous.peers import Peer, State, living
from rallypoint.supervision.scheduling import reschedules_all
from rallypoint.supervision.verdicts import Judgement
from rallypoint.wire.incident import Answer, Cause, FaultKind
from rallypoint.wire.plan import Profile, Scheduling

__all__ = ["foreign", "master", "settings"]


def foreign(state: State) -> str:
    """Return what graceful fault tolerance has put into the reset file, as the first agent tells it; "" for nothing."""
    told = (peer.report.tolerance for peer in sorted(living(state), key=lambda peer: peer.node))
    return next(filter(None, told), "")


def settings(state: State) -> Scheduling | None:
    """Return MindCluster's settings as they are in force: an entry in the reset file has the effect of the job's own word."""
    known = state.settings.scheduling
    if known is None or known.graceful_tolerance or not foreign(state):
        return known
    return dataclasses.replace(known, graceful_tolerance=True)


def master(state: State) -> tuple[Peer, Judgement] | None:
    """Return the agent of rank 0 and why it leaves for a fault of a process, where that reschedules the whole job."""
    in_force = settings(state)
    if state.settings.profile is not Profile.MINDCLUSTER or in_force is None or not reschedules_all(in_force):
        return None
    peer = state.peers.get(state.world[0].agent) if state.world else None
    if peer is None:
        return None
    told = foreign(state)
    why = f" (reset file: {told})" if told else ""
    rule = f"graceful fault tolerance{why}: rescheduling the whole job"
    return peer, Judgement(kind=FaultKind.EXIT_CODE, answer=Answer.RETRY_ELSEWHERE, cause=Cause.NODE, rule=rule)

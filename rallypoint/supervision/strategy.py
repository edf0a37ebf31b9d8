"""Which recovery strategy answers a fault, as MindCluster resolves it."""

from __future__ import annotations

import enum

__all__ = ["Strategy"]


class Strategy(str, enum.Enum):
    """The words of the annotation `recover-strategy`, in their fixed priority: the first that is possible is taken."""

    RETRY = "retry"  #: nobody restarts: the step is run again
    RECOVER_IN_PLACE = "recover-in-place"  #: the broken process restarts, its pod stays
    RECOVER = "recover"  #: the broken pod is replaced, the other processes live
    ELASTIC_TRAINING = "elastic-training"  #: the world shrinks around the broken pod
    DUMP = "dump"  #: a last checkpoint, then exit
    EXIT = "exit"  #: the faulty pods end, all others restart their workers

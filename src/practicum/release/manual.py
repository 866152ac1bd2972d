"""Decisions that a person makes. They are recorded like the gate's, with who and why."""

from __future__ import annotations

import getpass
import time

from practicum.errors import Conflict, UsageError
from practicum.policies import Registry
from practicum.types.ids import new_id
from practicum.types.policies import Decision, DecisionVerdict


def by_hand(registry: Registry, verdict: DecisionVerdict, version: int | None, reason: str) -> Decision:
    """A promotion of `version`, or a rollback to it (None: to the parent of the live version).

    Raises: UsageError without a reason; Conflict where there is nothing to roll back to.
    """
    if not reason.strip():
        raise UsageError("A decision by hand needs a reason.", hint="Pass --reason.")
    live = registry.live()
    if version is None:
        if live.parent is None:
            raise Conflict("The model as it was obtained is live; there is nothing before it.")
        version = live.parent
    return Decision(
        decision_id=new_id("dec"),
        version=version,
        previous=live.version,
        verdict=verdict,
        reason=reason,
        actor=getpass.getuser(),
        created_at=time.time(),
    )

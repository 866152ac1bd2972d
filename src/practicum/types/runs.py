"""A learning run and its finished steps: what a killed learner resumes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One pass of the loop. `state` belongs to the loop; `config` is what it was started with."""

    run_id: str
    state: str
    created_at: float
    updated_at: float
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One finished step of a run: its `output` is on record, so it never runs again. `seq` counts from 1."""

    run_id: str
    step: str
    seq: int
    output: Any
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to be the only one at `name`, until it expires.

    `token` grows with every holder. A write that carries the lease is refused once another holder has come, so a
    process that slept through its expiry changes nothing.
    """

    name: str
    owner: str
    token: int
    expires_at: float

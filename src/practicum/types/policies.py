"""Policy versions and the decisions about them. A version is a small integer; 0 is the model as it was obtained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

PolicyStatus = Literal["candidate", "live", "retired", "refused", "withdrawn", "dropped"]
DecisionVerdict = Literal["promote", "refuse", "rollback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One version: a LoRA adapter folder over the base model (`adapter_path` None for version 0), never weights.

    `digest` is the SHA-256 over the adapter's files; it is checked before the version is served, so a half-written
    or exchanged adapter cannot go live. Adapters are cumulative: each is relative to the base model. Of a `dropped`
    version only the record is left.
    """

    version: int
    parent: int | None
    status: PolicyStatus
    adapter_path: str | None
    digest: str
    created_at: float
    run_id: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One line of a decision: `estimate` in [`low`, `high`] (a 95% interval) against `bound`, and whether it held."""

    name: str
    rule: str
    estimate: float
    low: float
    high: float
    bound: float
    passed: bool
    n: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Why a version was promoted, refused or rolled back. Nothing goes live without one."""

    decision_id: str
    version: int
    previous: int | None
    verdict: DecisionVerdict
    reason: str
    actor: str
    created_at: float
    run_id: str | None = None
    checks: tuple[GateCheck, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)

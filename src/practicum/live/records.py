"""Records to JSON and back: what a step wrote, read by the next one or by a process that resumed the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from practicum.config import Config
from practicum.types.manifests import Entry, Exclusion, Manifest
from practicum.types.policies import Decision, GateCheck


def run_config(config: Config, kind: str) -> dict[str, Any]:
    """The resolved configuration, as stored with a run, and the run's kind."""
    return {"kind": kind, **config.model_dump(mode="json")}


def manifest_from(body: Mapping[str, Any]) -> Manifest:
    """The manifest that `dataclasses.asdict` wrote."""
    return Manifest(
        entries=tuple(
            Entry(**{**entry, "feedback_ids": tuple(entry["feedback_ids"]), "sources": tuple(entry["sources"])})
            for entry in body["entries"]
        ),
        excluded=tuple(Exclusion(**item) for item in body["excluded"]),
        train_calls=tuple(body["train_calls"]),
        heldout_calls=tuple(body["heldout_calls"]),
        cutoff=body["cutoff"],
        digest=body["digest"],
    )


def decision_from(body: Mapping[str, Any]) -> Decision:
    """The decision that `dataclasses.asdict` wrote."""
    return Decision(**{**body, "checks": checks_from(body["checks"])})


def checks_from(rows: Any) -> tuple[GateCheck, ...]:
    """Gate checks that `dataclasses.asdict` wrote."""
    return tuple(GateCheck(**row) for row in rows)

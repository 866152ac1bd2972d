"""Arrange the records of one learning run as a `Report`. Reads records, derives, and decides nothing.

Works for a run in any state: what a run did not get to is None or empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from practicum.dashboard.fates import FeedbackSource, fates
from practicum.dashboard.pairs import choose, pair_from
from practicum.dashboard.records import Item, Rate, Report, ReportState, Share, Stage
from practicum.dashboard.verdict import sentence
from practicum.errors import NotFound
from practicum.live.records import checks_from, decision_from, manifest_from
from practicum.types.manifests import Manifest
from practicum.types.policies import Decision, PolicyVersion
from practicum.types.runs import Run, RunStep

Outputs = Mapping[str, Mapping[str, Any]]


class Records(FeedbackSource, Protocol):
    """What a report reads of the store."""

    def runs(self) -> Sequence[Run]:
        """All runs, oldest first."""

    def run_steps(self, run_id: str) -> Sequence[RunStep]:
        """A run's finished steps, in order."""


class Versions(Protocol):
    """What a report reads of the registry."""

    def list(self) -> Sequence[PolicyVersion]:
        """All versions, in order."""

    def live(self) -> PolicyVersion:
        """The version that is served."""

    def decisions(self) -> Sequence[Decision]:
        """All decisions, oldest first."""


def build(store: Records, registry: Versions, run_id: str | None = None) -> Report:
    """The report on a run; on the newest one where none is named. Raises NotFound."""
    run = _find(store.runs(), run_id)
    steps = list(store.run_steps(run.run_id))
    outputs: Outputs = {step.step: step.output for step in steps}
    manifest = manifest_from(outputs["curate"]["manifest"]) if "curate" in outputs else None
    items = _items(store, run, outputs, manifest)
    decision = decision_from(outputs["decide"]["decision"]) if "decide" in outputs else None
    checks = checks_from(outputs["gate"]["checks"]) if "gate" in outputs else decision.checks if decision else ()
    target = next((line for line in checks if line.name.startswith("target:")), None)
    gate = outputs.get("gate", {}).get("figures") or (decision.figures if decision else {})
    rates = _rates(gate.get("rates") or {})
    train = outputs.get("train", {})
    reason = _reason(outputs, decision)
    state = _state(run, outputs, decision)
    known = _known(registry, run.run_id, outputs)
    last_step = steps[-1].step if steps else ""
    rolled_back = _rolled_back(registry, decision)
    pairs = tuple(pair_from(row) for row in outputs.get("gate", {}).get("examples", ()))
    version = known.version if known else None
    return Report(
        run_id=run.run_id,
        state=state,
        verdict=sentence(
            state=state,
            items=items,
            rates=rates,
            checks=checks,
            target=target,
            decision=decision,
            version=version,
            reason=reason,
            last_step=last_step,
            rolled_back=rolled_back,
        ),
        reason=reason,
        created_at=run.created_at,
        updated_at=run.updated_at,
        last_step=last_step,
        model=str((run.config.get("model") or {}).get("id", "")),
        previous=outputs.get("collect", {}).get("live"),
        version=version,
        status=known.status if known else None,
        live=registry.live().version,
        decision=decision,
        rolled_back=rolled_back,
        since=_figure(outputs.get("collect", {}), "since"),
        until=_figure(outputs.get("collect", {}), "until"),
        calls=outputs.get("curate", {}).get("calls"),
        feedback=outputs.get("curate", {}).get("feedback"),
        unaccounted=_unaccounted(outputs, items),
        items=items,
        rates=rates,
        target=target,
        checks=checks,
        heldout_cases=gate.get("heldout_cases"),
        regression_before=_figure(gate, "regression_before"),
        regression_after=_figure(gate, "regression_after"),
        kl_general=_figure(gate, "kl_general"),
        words_before=_figure(gate, "words_before"),
        words_after=_figure(gate, "words_after"),
        steps=train.get("steps"),
        skipped_steps=train.get("skipped_steps"),
        sampled_tokens=train.get("sampled_tokens"),
        trained_tokens=train.get("trained_tokens"),
        stages=_stages(run, steps, outputs),
        manifest_digest=manifest.digest if manifest else "",
        adapter_digest=known.digest if known else str(train.get("digest", "")),
        pairs=pairs,
        shown=choose(pairs),
        log=_log(outputs),
    )


def _find(runs: Sequence[Run], run_id: str | None) -> Run:
    if run_id is None and runs:
        return runs[-1]
    for run in runs:
        if run.run_id == run_id:
            return run
    if run_id is not None and runs:
        raise NotFound(f"There is no run {run_id!r}.", hint=f"The newest run is {runs[-1].run_id}.")
    raise NotFound("There is no learning run to report on.", hint="Start one with `practicum learn`.")


def _state(run: Run, outputs: Outputs, decision: Decision | None) -> ReportState:
    if decision is not None:
        return "promoted" if decision.verdict == "promote" else "refused"
    return "stopped" if "stopped" in outputs or run.state == "stopped" else "unfinished"


def _reason(outputs: Outputs, decision: Decision | None) -> str:
    return decision.reason if decision else str(outputs.get("stopped", {}).get("reason", ""))


def _log(outputs: Outputs) -> tuple[Mapping[str, Any], ...]:
    """Figures a step; a run that stopped itself may have left them with its reason."""
    return tuple(outputs.get("train", {}).get("log") or outputs.get("stopped", {}).get("log") or ())


def _items(store: Records, run: Run, outputs: Outputs, manifest: Manifest | None) -> tuple[Item, ...]:
    if manifest is None:
        return ()
    until = float(outputs.get("collect", {}).get("until", run.created_at))
    return fates(manifest, store, log=_log(outputs), trained="train" in outputs, until=until)


def _unaccounted(outputs: Outputs, items: Sequence[Item]) -> int:
    """Feedback that the run counted and that no entry and no exclusion names."""
    counted = outputs.get("curate", {}).get("feedback")
    return max(0, int(counted) - len({item.feedback_id for item in items})) if counted is not None else 0


def _known(registry: Versions, run_id: str, outputs: Outputs) -> PolicyVersion | None:
    registered = outputs.get("register", {}).get("version")
    for policy in registry.list():
        if policy.version == registered or (registered is None and policy.run_id == run_id):
            return policy
    return None


def _rolled_back(registry: Versions, decision: Decision | None) -> Decision | None:
    """The rollback that took this run's version back, if one did."""
    if decision is None or decision.verdict != "promote":
        return None
    back = [d for d in registry.decisions() if d.verdict == "rollback" and d.previous == decision.version]
    return back[-1] if back else None


def _rates(figures: Mapping[str, Any]) -> tuple[Rate, ...]:
    """All together first, then each check."""
    rates = [Rate(name=name, before=_share(row["before"]), after=_share(row["after"])) for name, row in figures.items()]
    return tuple(sorted(rates, key=lambda rate: rate.name != "all"))


def _share(row: Mapping[str, Any]) -> Share:
    return Share(estimate=_figure(row, "estimate"), low=float(row["low"]), high=float(row["high"]), n=int(row["n"]))


def _figure(figures: Mapping[str, Any], name: str) -> float | None:
    value = figures.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _stages(run: Run, steps: Sequence[RunStep], outputs: Outputs) -> tuple[Stage, ...]:
    """Time between records. The run is created once feedback is collected and curated, so those two are one stage."""
    worked = {
        "train": _figure(outputs.get("train", {}), "wall_s"),
        "gate": _figure(outputs.get("gate", {}).get("figures", {}), "gate_s"),
    }
    before = _figure(outputs.get("collect", {}), "until") or run.created_at
    stages = []
    for step in steps:
        if step.step == "collect" and "curate" in outputs:
            continue
        name = "collect and curate" if step.step == "curate" else step.step
        stages.append(
            Stage(name=name, at=step.at, elapsed_s=max(0.0, step.at - before), worked_s=worked.get(step.step))
        )
        before = step.at
    return tuple(stages)

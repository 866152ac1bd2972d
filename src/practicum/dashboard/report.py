"""Arrange the records of one learning run as a `Report`. Reads records, derives, and decides nothing.

Works for a run in any state: what a run did not get to is None or empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Protocol

from practicum.dashboard.fates import FeedbackSource, fates
from practicum.dashboard.pairs import choose, pair_from
from practicum.dashboard.records import Item, Measures, Rate, Report, ReportState, Share, Stage, Window, Work
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
    decision = decision_from(outputs["decide"]["decision"]) if "decide" in outputs else None
    items = _items(store, run, outputs, manifest)
    checks = checks_from(outputs["gate"]["checks"]) if "gate" in outputs else decision.checks if decision else ()
    measured = outputs.get("gate") or outputs.get("evaluate") or {}
    figures = measured.get("figures") or (decision.figures if decision else {})
    known = _known(registry, run.run_id, outputs)
    pairs = tuple(pair_from(row) for row in outputs.get("gate", {}).get("examples", ()))
    report = Report(
        run_id=run.run_id,
        state=_state(run, outputs, decision),
        verdict="",
        reason=decision.reason if decision else str(outputs.get("stopped", {}).get("reason", "")),
        created_at=run.created_at,
        updated_at=run.updated_at,
        last_step=steps[-1].step if steps else "",
        model=_model(run),
        previous=outputs.get("collect", outputs.get("begin", {})).get("live"),
        version=known.version if known else None,
        status=known.status if known else None,
        live=registry.live().version,
        decision=decision,
        rolled_back=_rolled_back(registry, decision),
        window=_window(outputs, items),
        items=items,
        rates=_rates(figures.get("rates") or {}),
        target=next((line for line in checks if line.name.startswith("target:")), None),
        checks=checks,
        measures=_measures(figures),
        work=_work(outputs.get("train", {}), _log(outputs)),
        stages=_stages(run, steps, outputs),
        manifest_digest=manifest.digest if manifest else "",
        adapter_digest=known.digest if known else str(outputs.get("train", {}).get("digest", "")),
        pairs=pairs,
        shown=choose(pairs),
        log=_log(outputs),
        kind="learn" if run.config.get("kind", "learn") == "learn" else "train",
    )
    return replace(report, verdict=sentence(report))


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
    if "stopped" in outputs or run.state == "stopped":
        return "stopped"
    return "trained" if run.state == "finished" else "unfinished"


def _model(run: Run) -> str:
    """The model's name; of one in a folder only the folder's, since a report is passed on."""
    name = str((run.config.get("model") or {}).get("id", ""))
    return PurePath(name).name if PurePath(name).is_absolute() else name


def _log(outputs: Outputs) -> tuple[Mapping[str, Any], ...]:
    """Figures a step; a run that stopped itself may have left them with its reason."""
    return tuple(outputs.get("train", {}).get("log") or outputs.get("stopped", {}).get("log") or ())


def _items(store: Records, run: Run, outputs: Outputs, manifest: Manifest | None) -> tuple[Item, ...]:
    if manifest is None:
        return ()
    until = float(outputs.get("collect", {}).get("until", run.created_at))
    return fates(manifest, store, log=_log(outputs), trained="train" in outputs, until=until)


def _window(outputs: Outputs, items: Sequence[Item]) -> Window:
    collected, curated = outputs.get("collect", {}), outputs.get("curate", {})
    counted = curated.get("feedback")
    named = len({item.feedback_id for item in items})
    return Window(
        since=_figure(collected, "since"),
        until=_figure(collected, "until"),
        calls=curated.get("calls"),
        feedback=counted,
        unaccounted=max(0, int(counted) - named) if counted is not None else 0,
    )


def _measures(figures: Mapping[str, Any]) -> Measures:
    return Measures(
        heldout_cases=figures.get("heldout_cases"),
        regression_before=_figure(figures, "regression_before"),
        regression_after=_figure(figures, "regression_after"),
        kl_general=_figure(figures, "kl_general"),
        words_before=_figure(figures, "words_before"),
        words_after=_figure(figures, "words_after"),
        reward_before=_figure(figures, "reward_before"),
        reward_after=_figure(figures, "reward_after"),
    )


def _work(train: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> Work:
    return Work(
        steps=train.get("steps"),
        skipped_steps=train.get("skipped_steps"),
        sampled_tokens=train.get("sampled_tokens"),
        trained_tokens=train.get("trained_tokens"),
        rollouts=_rollouts(log),
    )


def _rollouts(log: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Every rollout of every step, under what became of it; what an algorithm keeps without a signal is named too."""
    found: Counter[str] = Counter()
    for figures in log:
        found["learned from"] += int(figures.get("with_signal", 0))
        for name, n in figures.items():
            if name.startswith("left_out/"):
                found[name.removeprefix("left_out/")] += int(n)
    rest = sum(int(figures.get("rollouts", 0)) for figures in log) - found.total()
    return {reason: n for reason, n in [*found.most_common(), ("kept without a signal", rest)] if n}


def _known(registry: Versions, run_id: str, outputs: Outputs) -> PolicyVersion | None:
    registered = outputs.get("register", {}).get("version")
    for policy in registry.list():
        own = policy.run_id == run_id and not policy.note  # one with a note is the policy of a step
        if policy.version == registered or (registered is None and own):
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

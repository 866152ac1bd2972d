"""The gate: better on what was asked for, and not worse on anything else; otherwise refused, with the reason.

A pure function of the evidence. Superiority is asked of the target (the 95% interval of the paired difference lies
above `min_gain`), non-inferiority of every guard (the interval's worse end stays within the margin). Guards are not
corrected for their number: each must hold, so testing more of them only makes a promotion harder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from practicum.config import GateConfig
from practicum.evals.guards import ChoiceResult, Divergence, well_formed
from practicum.evals.heldout import Graded
from practicum.evals.stats import Interval, paired_difference
from practicum.types.ids import new_id
from practicum.types.policies import Decision, DecisionVerdict, GateCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Single answers of both policies to the same held-out prompts: one entry a case, all aligned with `clusters`.

    `on_topic_*` may be empty where there was no second prompt to compare with.
    """

    clusters: tuple[str, ...]
    new: tuple[Graded, ...]
    old: tuple[Graded, ...]
    on_topic_new: tuple[float, ...]
    on_topic_old: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured of a candidate against the live policy.

    `target_*` are aligned with `target_clusters`, `regression_*` with each other. `answers` is None where whole
    rollouts were compared and no single answers: then nothing is asked of them.
    """

    target_name: str
    target_new: tuple[float, ...]
    target_old: tuple[float, ...]
    target_clusters: tuple[str, ...]
    regression_new: ChoiceResult
    regression_old: ChoiceResult
    divergence: Divergence
    answers: Answers | None


def checks(evidence: Evidence, settings: GateConfig) -> tuple[GateCheck, ...]:
    """Every line of the decision, held or not."""
    items = tuple(range(len(evidence.regression_new.probability)))
    kl = evidence.divergence
    return (
        _superior(
            f"target: {evidence.target_name}",
            paired_difference(evidence.target_new, evidence.target_old, evidence.target_clusters),
            settings.min_gain,
            settings.min_cases,
        ),
        _not_inferior(
            "regression suite: probability of the right option",
            paired_difference(evidence.regression_new.probability, evidence.regression_old.probability, items),
            settings.regression_margin,
            f"accuracy {evidence.regression_old.accuracy:.3f} -> {evidence.regression_new.accuracy:.3f}",
        ),
        *(_answer_checks(evidence.answers, settings) if evidence.answers is not None else ()),
        _bounded(
            "distance to the live policy on general prompts (nats per token)",
            paired_difference(kl.per_prompt, [0.0] * len(kl.per_prompt), range(len(kl.per_prompt))),
            settings.max_kl,
        ),
    )


def _answer_checks(answers: Answers, settings: GateConfig) -> tuple[GateCheck, ...]:
    """What is asked of single answers beside the target."""
    formed_new = [float(well_formed(answer.text)) for answer in answers.new]
    formed_old = [float(well_formed(answer.text)) for answer in answers.old]
    topic_new, topic_old = answers.on_topic_new, answers.on_topic_old
    return (
        _not_inferior(
            "stays on the question",
            paired_difference(topic_new, topic_old, answers.clusters[: len(topic_new)]),
            settings.on_topic_margin,
            f"{_mean(topic_old):.2f} -> {_mean(topic_new):.2f}",
        ),
        _not_inferior(
            "well formed: not empty, no loops",
            paired_difference(formed_new, formed_old, answers.clusters),
            settings.well_formed_margin,
            f"{_mean(formed_old):.2f} -> {_mean(formed_new):.2f}",
        ),
    )


def decide(
    lines: Sequence[GateCheck],
    *,
    version: int,
    live: int,
    actor: str,
    run_id: str | None = None,
    refused_because: str = "",
    figures: Mapping[str, object] | None = None,
) -> Decision:
    """Promote if every line held, else refuse; the reason names the lines that did not.

    `refused_because` refuses whatever the lines say: the comparison itself no longer stands.
    """
    failed = [line for line in lines if not line.passed]
    verdict: DecisionVerdict = "refuse" if failed or refused_because or not lines else "promote"
    return Decision(
        decision_id=new_id("dec"),
        version=version,
        previous=live,
        verdict=verdict,
        reason=refused_because or _reason(lines, failed),
        actor=actor,
        created_at=time.time(),
        run_id=run_id,
        checks=tuple(lines),
        figures=dict(figures or {}),
    )


def _reason(lines: Sequence[GateCheck], failed: Sequence[GateCheck]) -> str:
    if failed:
        return "; ".join(f"{_found(line)}, {line.rule}" for line in failed)
    return f"{_found(lines[0])}, and every guard held" if lines else "nothing was measured"


def _found(line: GateCheck) -> str:
    return f"{line.name}: {line.estimate:+.3f} [{line.low:+.3f}, {line.high:+.3f}]"


def _superior(name: str, found: Interval, bound: float, min_cases: int) -> GateCheck:
    enough = found.n >= min_cases
    return _line(
        name,
        f"the interval must lie above {bound:+.3f}" + ("" if enough else f", over at least {min_cases} cases"),
        found,
        bound,
        enough and found.low > bound,
    )


def _not_inferior(name: str, found: Interval, margin: float, detail: str) -> GateCheck:
    return _line(name, f"the interval must lie above {-margin:+.3f}", found, -margin, found.low > -margin, detail)


def _bounded(name: str, found: Interval, bound: float) -> GateCheck:
    return _line(name, f"must be at most {bound:.3f}", found, bound, found.estimate <= bound)


def _line(name: str, rule: str, found: Interval, bound: float, passed: bool, detail: str = "") -> GateCheck:
    return GateCheck(
        name=name,
        rule=rule,
        estimate=found.estimate,
        low=found.low,
        high=found.high,
        bound=bound,
        passed=passed,
        n=found.n,
        detail=detail,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")

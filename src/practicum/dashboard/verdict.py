"""The one sentence a report opens with: what was asked, what changed, what was decided and why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from practicum.dashboard.records import Item, Rate, Report
from practicum.dashboard.wording import number, one_line, percent, plural, points, rule_name
from practicum.types.policies import Decision, GateCheck


def sentence(report: Report) -> str:
    """Asked; changed; decided, as far as the run got."""
    if report.kind == "train":
        asked, changed = worked_on(report), what_tasks_show(report)
    else:
        asked, changed = asked_for(report.items), what_changed(report.rates, report.target)
    who = f"version {report.version}" if report.version is not None else "the candidate"
    ends = {
        "promoted": f"so {who} went live: every gate line held",
        "refused": f"but {who} was refused: {why_refused(report.checks, report.decision)}",
        "stopped": f"but {_stopped(report)}: {_clause(report.reason, 240)}",
        "trained": f"and {who} is a candidate: no decision was asked for, and nothing went live",
        "unfinished": f"and the run has not finished: its last finished step is {report.last_step or 'none'}",
    }
    text = f"{asked}; {changed}, {ends[report.state]}" if changed else f"{asked}, {ends[report.state]}"
    if report.rolled_back is not None:
        text += f"; it was rolled back later: {_clause(report.rolled_back.reason, 160)}"
    return text + "."


def asked_for(items: Sequence[Item]) -> str:
    """How many people gave how much feedback, by form."""
    given = [item for item in items if item.form is not None]
    if not given:
        return "No feedback is on record for this run"
    forms = [(sum(item.form == form for item in given), form) for form in ("comment", "correction")]
    other = len(given) - sum(n for n, _ in forms)
    kinds = [plural(n, noun) for n, noun in [*forms, (other, "other signal")] if n]
    people = len({item.source for item in given})
    listed = kinds[0] if len(kinds) == 1 else ", ".join(kinds[:-1]) + " and " + kinds[-1]
    return f"{people:,} {'person' if people == 1 else 'people'} gave {listed}"


def worked_on(report: Report) -> str:
    """How much training on tasks did."""
    steps, rollouts = len(report.log), sum(int(figures.get("rollouts", 0)) for figures in report.log)
    if not steps:
        return "No step of this run is on record"
    return f"The agent learned from {plural(rollouts, 'rollout')} in {plural(steps, 'step')}"


def what_tasks_show(report: Report) -> str:
    """The mean reward on held-out tasks, before and after; empty where nothing was measured."""
    found, target = report.measures, report.target
    if found.heldout_cases is None or found.reward_before is None or found.reward_after is None:
        return ""
    before, after = number(found.reward_before, 2), number(found.reward_after, 2)
    tasks = plural(found.heldout_cases, "held-out task")
    return f"on {tasks} the mean reward went from {before} to {after}{_interval(target, scale=False)}"


def _stopped(report: Report) -> str:
    made = report.version is not None
    return "the run stopped itself" if made else "training stopped itself before a version was made"


def what_changed(rates: Sequence[Rate], target: GateCheck | None) -> str:
    """The target on held-out prompts, before and after; empty where nothing was measured."""
    together = next((rate for rate in rates if rate.name == "all"), None)
    if together is not None and together.after.n:
        rules = [rule_name(rate.name) for rate in rates if rate.name != "all"]
        listed = f" ({one_line(', '.join(rules), 80)})" if rules else ""
        noun = "prompt" if together.after.n == 1 else "prompts"
        return (
            f"on {together.after.n:,} held-out {noun}, answers that meet every rule{listed} went from "
            f"{percent(together.before.estimate)} to {percent(together.after.estimate)}{_interval(target)}"
        )
    if target is not None and math.isfinite(target.estimate):
        return (
            f"judged by {plural(target.n, 'held-out piece')} of feedback, the new answers' wins minus losses are "
            f"{number(target.estimate, 2, sign=True)} on a scale from -1 to 1{_interval(target, scale=False)}"
        )
    return ""


def _interval(target: GateCheck | None, scale: bool = True) -> str:
    if target is None or not (math.isfinite(target.low) and math.isfinite(target.high)):
        return ""
    if scale:
        return f" ({points(target.estimate)}, 95% interval {100 * target.low:+.1f} to {100 * target.high:+.1f})"
    return f" (95% interval {target.low:+.2f} to {target.high:+.2f})"


def why_refused(checks: Sequence[GateCheck], decision: Decision | None) -> str:
    """The lines that did not hold, or the decision's own reason where no line failed."""
    failed = [line for line in checks if not line.passed]
    moved = str(decision.figures.get("refused_because", "")) if decision else ""
    if moved or not failed:
        return _clause(moved or (decision.reason if decision else "no reason is on record"), 240)
    names = "; ".join(one_line(line.name, 80) for line in failed)
    return f"{len(failed)} of {len(checks)} gate lines did not hold ({names})"


def _clause(text: str, limit: int) -> str:
    return one_line(text, limit).rstrip(".")

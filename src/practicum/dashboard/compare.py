"""Two training runs beside each other: settings that differ, curves, and held-out rewards task by task.

Reads records, derives, and decides nothing. A run in any state can be compared; what it did not get to is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, Group
from rich.table import Table

from practicum.errors import NotFound
from practicum.evals.stats import Interval, mean_interval, paired_difference
from practicum.types.runs import Run, RunStep

_CURVE = ("reward", "heldout_reward")
_MOST_ROWS = 24


class Records(Protocol):
    """What a comparison reads of the store."""

    def runs(self) -> Sequence[Run]:
        """All runs, oldest first."""

    def run_steps(self, run_id: str) -> Sequence[RunStep]:
        """A run's finished steps, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One run. `curve` has a row a step: step, seconds so far, and the rewards that are known. `before` and `after` are
    mean rewards on its held-out tasks.
    """

    run_id: str
    state: str
    steps: int
    wall_s: float
    sampled_tokens: float
    before: Interval | None
    after: Interval | None
    curve: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`settings` has both values of each that differs; `difference` is second minus first, over the tasks of both."""

    sides: tuple[Side, Side]
    settings: Mapping[str, tuple[Any, Any]]
    difference: Interval | None


def compared(store: Records, first: str, second: str) -> Comparison:
    """Both runs beside each other. Raises NotFound."""
    runs = {run.run_id: run for run in store.runs()}
    for name in (first, second):
        if name not in runs:
            known = ", ".join(list(runs)[-3:]) or "none"
            raise NotFound(f"There is no run {name!r}.", hint=f"The newest runs are: {known}.")
    outputs = [{step.step: step.output for step in store.run_steps(name)} for name in (first, second)]
    one, two = (_flat(runs[name].config) for name in (first, second))
    names = sorted({*one, *two})
    rewards = [found.get("evaluate", {}).get("after", {}) for found in outputs]
    both = [task for task in rewards[0] if task in rewards[1]]
    return Comparison(
        sides=(_side(runs[first], outputs[0]), _side(runs[second], outputs[1])),
        settings={name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)},
        difference=paired_difference([rewards[1][t] for t in both], [rewards[0][t] for t in both], both)
        if both
        else None,
    )


def _side(run: Run, outputs: Mapping[str, Mapping[str, Any]]) -> Side:
    log = outputs.get("train", outputs.get("stopped", {})).get("log") or ()
    found = outputs.get("evaluate", {})
    curve, wall_s = [], 0.0
    for figures in log:
        wall_s += float(figures.get("sample_s", 0)) + float(figures.get("train_s", 0))
        known = {name: float(figures[name]) for name in _CURVE if name in figures}
        curve.append({"step": float(figures["step"]), "wall_s": wall_s} | known)
    return Side(
        run_id=run.run_id,
        state=run.state,
        steps=len(log),
        wall_s=wall_s,
        sampled_tokens=sum(float(figures.get("sampled_tokens", 0)) for figures in log),
        before=mean_interval(list(found["before"].values())) if found else None,
        after=mean_interval(list(found["after"].values())) if found else None,
        curve=tuple(curve),
    )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def print_compared(found: Comparison, console: Console | None = None) -> None:
    """The comparison on a terminal."""
    (console or Console()).print(Group(*_tables(found)))


def _tables(found: Comparison) -> list[Table]:
    names = [side.run_id for side in found.sides]
    summary = Table("", *names, title="Two training runs")
    summary.add_row("state", *(side.state for side in found.sides))
    summary.add_row("steps", *(str(side.steps) for side in found.sides))
    summary.add_row("sampling and training", *(f"{side.wall_s:.0f} s" for side in found.sides))
    summary.add_row("sampled tokens", *(f"{side.sampled_tokens:,.0f}" for side in found.sides))
    summary.add_row("held-out reward before", *(_shown(side.before) for side in found.sides))
    summary.add_row("held-out reward after", *(_shown(side.after) for side in found.sides))
    if found.difference is not None:
        summary.add_row("second minus first, same tasks", "", _shown(found.difference))
    settings = Table("setting", *names, title="Settings that differ")
    for name, values in found.settings.items():
        settings.add_row(name, *("" if value is None else str(value) for value in values))
    curves = Table("step", *(f"{name}: {what}" for name in names for what in ("reward", "held out", "s")))
    longest = max(len(side.curve) for side in found.sides)
    for step in range(0, longest, max(1, -(-longest // _MOST_ROWS))):
        curves.add_row(str(step), *(cell for side in found.sides for cell in _cells(side.curve, step)))
    return [summary, *([settings] if found.settings else []), *([curves] if longest else [])]


def _cells(curve: Sequence[Mapping[str, float]], step: int) -> tuple[str, str, str]:
    row = curve[step] if step < len(curve) else {}
    reward, heldout = (f"{row[name]:.3f}" if name in row else "" for name in _CURVE)
    return reward, heldout, f"{row['wall_s']:.0f}" if row else ""


def _shown(found: Interval | None) -> str:
    return "" if found is None else f"{found.estimate:.3f} ({found.low:.3f} to {found.high:.3f}, n {found.n})"

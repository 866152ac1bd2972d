"""The report per harness, in a terminal and as JSON. `episodes/summary.py` counts; nothing is decided here."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from practicum.dashboard.terminal import WIDTH
from practicum.dashboard.wording import count, visible
from practicum.episodes.side_calls import REASONS
from practicum.episodes.summary import FORKS, HarnessSummary, LogprobGap

NO_CALLS = "No model call is on record. Point a harness at this server's address and run it; then ask again."


def show_harnesses(found: Sequence[HarnessSummary], console: Console | None = None) -> None:
    """Print one block a harness to `console`, by default to standard output."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if not found:
        console.print(NO_CALLS, highlight=False)
    for summary in found:
        console.print(Text(visible(summary.harness), style="bold"))
        table = Table.grid(padding=(0, 2))
        for name, value in _lines(summary):
            table.add_row(Text(f"  {name}", style="dim"), Text(visible(value)))
        console.print(table, highlight=False)
        console.print()


def harnesses_json(found: Sequence[HarnessSummary]) -> str:
    """All summaries as ASCII JSON, with the meanings of the reasons in them; a gap that is not finite is null."""
    forks = {name for summary in found for name in summary.forks}
    sides = {name for summary in found for name in summary.side_calls}
    return json.dumps(
        {
            "harnesses": [asdict(summary) | {"logprob_gap": _gap_json(summary.logprob_gap)} for summary in found],
            "fork_meaning": {name: FORKS.get(name, "") for name in sorted(forks)},
            "side_call_meaning": {name: REASONS.get(name, "") for name in sorted(sides)},
        },
        indent=2,
        allow_nan=False,
    )


def _lines(summary: HarnessSummary) -> list[tuple[str, str]]:
    ratio = "–" if summary.merge_ratio is None else f"{summary.merge_ratio:.1f} calls a row"
    lines = [
        ("calls", f"{count(summary.calls)}: {_listed(summary.kinds)}"),
        ("sessions", f"{count(summary.sessions)}, with {count(summary.agents)} sub-agents"),
        ("session known by", _listed(summary.session_sources)),
        ("episodes", count(summary.episodes)),
        ("rows", f"{count(summary.rows)}, {ratio}"),
        ("tokens", f"{count(summary.sampled_tokens)} sampled, {count(summary.trained_tokens)} trained"),
        ("logprob gap", _gap(summary.logprob_gap)),
    ]
    lines += [(f"fork {name}", f"{count(n)}  {FORKS.get(name, '')}") for name, n in summary.forks.items()]
    lines += [(f"side {name}", f"{count(n)}  {REASONS.get(name, '')}") for name, n in summary.side_calls.items()]
    if summary.cut_by_default:
        cut = f"{count(summary.cut_by_default)} answers whose request names no limit: see gateway.default_max_tokens"
        lines.append(("cut short", cut))
    lines += [(f"blanked {name}", f"{count(n)} calls") for name, n in summary.volatile.items()]
    lines += [("not trained", f"{count(n)}  {reason}") for reason, n in summary.refusals.items()]
    return lines


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count(number)}" for name, number in counts.items()) or "–"


def _gap(gap: LogprobGap | None) -> str:
    if gap is None:
        return "not computed; --recompute asks the engine"
    return f"largest {gap.largest:.2e}, mean {gap.mean:.2e} over {count(gap.tokens)} trained tokens"


def _gap_json(gap: LogprobGap | None) -> dict[str, float | None] | None:
    if gap is None:
        return None
    return {name: value if math.isfinite(value) else None for name, value in asdict(gap).items()}

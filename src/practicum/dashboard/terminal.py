"""The report in a terminal, within 100 columns, and as JSON for programs.

Every text passes `visible`, so no control sequence of a model or a person reaches the terminal; nothing is read as
rich's own markup. Colour only where rich finds a terminal that wants it; a word says the same as each colour.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from practicum.dashboard.records import Pair, Rate, Report
from practicum.dashboard.voices import Voice, first_few, reasons, voices
from practicum.dashboard.wording import (
    PAIRS,
    STATES,
    count,
    duration,
    number,
    one_line,
    percent,
    plural,
    points,
    rule_name,
    visible,
    when,
)

WIDTH = 100
_TONES = {
    "promoted": "bold blue",
    "refused": "bold yellow",
    "stopped": "bold yellow",
    "trained": "bold",
    "unfinished": "bold",
}
_PAIRS_SHOWN = 3


def show(report: Report, console: Console | None = None) -> None:
    """Print the report to `console`, by default to standard output."""
    written(_body(report), console)


def written(body: RenderableType, console: Console | None = None) -> None:
    """Print something to `console`, by default to standard output, whatever that can encode."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
    with console.capture() as captured:
        console.print(body, width=min(WIDTH, console.width), crop=False, highlight=False)
    text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
    console.file.write(text.encode(console.encoding, "backslashreplace").decode(console.encoding))
    console.file.flush()


def render_json(report: Report) -> str:
    """The whole report as ASCII JSON; figures that are not finite are null."""
    return json.dumps(_plain(asdict(report)), indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _body(report: Report) -> Group:
    symbol, word = STATES[report.state]
    head = Text.assemble((f"{symbol} {word}", _TONES[report.state]), "  ", (report.run_id, "dim"))
    parts: list[RenderableType] = [head, Text(visible(report.verdict)), Text()]
    for title, body in (
        ("Before and after", _rates(report)),
        ("What people asked for", _voices(report)),
        ("Side by side", _pairs(report)),
        ("Gate", _gate(report)),
        ("What became of the feedback", _fates(report)),
        ("Cost and provenance", _cost(report)),
    ):
        if body is not None:
            parts += [Text(title, style="bold"), Padding(body, (0, 0, 1, 2))]
    return Group(*parts)


def grid(rows: Iterable[Sequence[str | Text]], head: Sequence[str] = (), right: frozenset[int] = frozenset()) -> Table:
    """Rows without lines; the columns of `right` are set to the right."""
    rows = list(rows)
    table = Table(box=None, show_header=bool(head), pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index in range(len(rows[0]) if rows else len(head)):
        table.add_column(
            head[index] if head else "", justify="right" if index in right else "left", overflow="fold", no_wrap=False
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def _rates(report: Report) -> Table | None:
    rows: list[Sequence[str | Text]] = [_rate_row(rate) for rate in report.rates]
    if report.target and not report.rates:
        estimate, low, high = (
            number(value, 2, sign=True) for value in (report.target.estimate, report.target.low, report.target.high)
        )
        rows.append(
            ("held-out feedback, wins minus losses", "", estimate, f"95%: {low} to {high}, n {report.target.n}")
        )
    found = report.measures
    if found.heldout_cases is not None:
        change = None
        if found.regression_before is not None and found.regression_after is not None:
            change = found.regression_after - found.regression_before
        before, after = (
            "–" if value is None else f"{100 * value:.1f}%"
            for value in (found.regression_before, found.regression_after)
        )
        if report.kind == "learn":
            rows.append(("words in an answer (median)", count(found.words_before), count(found.words_after), ""))
        if found.reward_before is not None and found.reward_after is not None:
            before_after = number(found.reward_before), number(found.reward_after)
            rows.append(("mean reward on held-out tasks", *before_after, f"n {found.heldout_cases} tasks"))
        rows.append(("general knowledge (regression suite)", before, after, points(change)))
        rows.append(("distance to the previous version", "", number(found.kl_general, 4), "nats per token (KL)"))
    return grid(rows, ("", "before", "after", ""), frozenset({1, 2})) if rows else None


def _rate_row(rate: Rate) -> tuple[str, str, str, str]:
    spans = " → ".join(f"{percent(share.low)}–{percent(share.high)}" for share in (rate.before, rate.after))
    return (
        one_line(rule_name(rate.name), 36),
        percent(rate.before.estimate),
        percent(rate.after.estimate),
        f"95%: {spans}, n {rate.after.n}",
    )


def _voices(report: Report) -> Table | None:
    found = voices(report.items)
    first, _ = first_few(found)
    rows: list[Sequence[str | Text]] = [
        (f"{voice.times}×", one_line(_said(voice), 110), one_line(", ".join(w for w, _ in voice.fates), 60))
        for voice in first
    ]
    if len(found) > len(first):
        rows.append(("", Text(f"and {plural(len(found) - len(first), 'more text')}", style="dim"), ""))
    return grid(rows) if rows else None


def _said(voice: Voice) -> str:
    """The words; of a correction only what it changed, where that is known."""
    changed = [(kind, words.strip()) for kind, words in voice.changes if kind != "same"]
    signs = {"new": "added", "gone": "removed"}
    return (
        "corrected answer; " + "; ".join(f"{signs[kind]}: {words}" for kind, words in changed)
        if changed
        else voice.text
    )


def _pairs(report: Report) -> Group | None:
    """A few improvements and then what got worse; how many there are of each is always said."""
    if not report.pairs:
        return None
    tally = ", ".join(
        f"{n} {PAIRS[kind][1]}" for kind in PAIRS if (n := sum(pair.kind == kind for pair in report.pairs))
    )
    chosen = [report.pairs[index] for index in report.shown]
    worse = [pair for pair in chosen if pair.kind == "worse"][:_PAIRS_SHOWN]
    others = [pair for pair in chosen if pair.kind != "worse"][:_PAIRS_SHOWN]
    parts: list[RenderableType] = [Text(f"{plural(len(report.pairs), 'held-out prompt')}: {tally}")]
    return Group(*parts, *(_pair(pair) for pair in [*others, *worse]))


def _pair(pair: Pair) -> RenderableType:
    symbol, word = PAIRS[pair.kind]
    lost = f"(lost: {', '.join(rule_name(name) for name in pair.lost)})" if pair.lost else ""
    head = Text(f"{symbol} {word} {one_line(lost, 60)}", style="yellow" if pair.kind == "worse" else "blue")
    rows = [("question", pair.question), ("asked", pair.asked), ("before", pair.before), ("after", pair.after)]
    return Group(head, grid([(Text(name, style="dim"), one_line(text, 170)) for name, text in rows if text]))


def _gate(report: Report) -> RenderableType | None:
    rows: list[Sequence[str | Text]] = [
        (
            Text("✔ held" if line.passed else "✖ not held", style="blue" if line.passed else "bold yellow"),
            one_line(line.name, 120),
            f"{number(line.estimate, sign=True)} [{number(line.low, sign=True)}, {number(line.high, sign=True)}]",
            f"bound {number(line.bound, sign=True)}",
            f"n {line.n}",
        )
        for line in report.checks
    ]
    if rows:
        return grid(rows)
    return Text(one_line(report.reason, 400)) if report.reason else None


def _fates(report: Report) -> Table | None:
    rows: list[Sequence[str | Text]] = [(count(n), one_line(words, 160)) for words, n in reasons(report.items)[:12]]
    rest = len(reasons(report.items)) - 12
    if rest > 0:
        rows.append(("", Text(f"and {plural(rest, 'more reason')}", style="dim")))
    if report.window.unaccounted:
        rows.append((count(report.window.unaccounted), "in the window, but named by no record of this run"))
    return grid(rows, right=frozenset({0})) if rows else None


def _cost(report: Report) -> Table:
    made = f"{'–' if report.previous is None else report.previous} → {report.version} ({report.status or 'unknown'})"
    rollouts = report.work.rollouts
    time = ", ".join(f"{stage.name} {duration(stage.elapsed_s)}" for stage in report.stages)
    rows = [
        ("versions", f"{'none was made' if report.version is None else made}; version {report.live} is live now"),
        ("begun", when(report.created_at)),
        ("time", time or "–"),
        ("tokens", f"{count(report.work.sampled_tokens)} sampled, {count(report.work.trained_tokens)} trained on"),
        ("steps", f"{count(report.work.steps)}, {count(report.work.skipped_steps)} skipped"),
        *([("rollouts", "; ".join(f"{n:,} {why}" for why, n in rollouts.items()))] if rollouts else []),
        ("manifest", report.manifest_digest or "–"),
    ]
    return grid([(Text(name, style="dim"), one_line(text, 200)) for name, text in rows])

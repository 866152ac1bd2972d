"""The report as one self-contained page: no script, nothing remote, a policy that allows neither.

Autoescaping is on and every text passes `visible` first. The style sheet is inlined and the page's content security
policy names its hash, so markup that got in by mistake could not even style itself.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from practicum.dashboard import svg, voices, wording
from practicum.dashboard.records import Report

MOST_BYTES = 5_000_000
# Characters of one text before it is cut: the first that keeps the page under its size is taken.
_TEXT_LIMITS = (12_000, 3_000, 600)

# Pairs that stand open; the others are folded, those that got worse under their own heading.
_PAIRS_OPEN = 4
_WORSE_OPEN = 8

_CHARTS = (
    ("Loss", "weighted sum of a step", lambda name: name.endswith("/loss")),
    ("Distance to the starting policy", "KL, nats per token", lambda name: name.endswith("/kl")),
    ("Length of fresh answers", "tokens", lambda name: name == "fresh_length"),
)
_SERIES_NAMES: Mapping[str, str] = {
    "cross_entropy": "corrected answers (cross-entropy)",
    "distill": "comments (distillation)",
    "policy_gradient": "signals (policy gradient)",
    "fresh_length": "fresh answers",
}


def render_html(report: Report) -> str:
    """The page. Texts are cut where it would grow beyond `MOST_BYTES`; the cut is marked."""
    page = ""
    for limit in _TEXT_LIMITS:
        page = _render(report, limit)
        if len(page.encode()) < MOST_BYTES:
            break
    return page


def write_html(report: Report, path: Path) -> Path:
    """Write the page to `path`, whole or not at all; makes the folder. Raises OSError."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    page = render_html(report).encode()
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return path


def _render(report: Report, text_limit: int) -> str:
    environment = _environment()
    css = _css()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    chosen = [report.pairs[index] for index in report.shown]
    worse = [pair for pair in report.pairs if pair.kind == "worse"]
    others = [pair for pair in chosen if pair.kind != "worse"]
    first, more = voices.first_few(voices.voices(report.items))
    return environment.get_template(
        "report.html"
    ).render(
        report=report,
        css=Markup(css),  # ours, from the package
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        text_limit=text_limit,
        voices=first,
        more_voices=more,
        forms=voices.forms(report.items),
        reasons=voices.reasons(report.items),
        pairs=others[:_PAIRS_OPEN] + worse[:_WORSE_OPEN],
        more_worse=worse[_WORSE_OPEN:],
        more_pairs=others[_PAIRS_OPEN:],
        kinds=_kinds(report),
        rates_plot=svg.rates_plot(report.rates) if report.rates else None,
        gate_bars=[svg.gate_bar(check, f"gate-{index}") for index, check in enumerate(report.checks)],
        charts=_charts(report.log),
    )


def _kinds(report: Report) -> list[tuple[str, str, int]]:
    """How many pairs there are of each kind: kind, words, number."""
    numbers = Counter(pair.kind for pair in report.pairs)
    return [(kind, words, numbers[kind]) for kind, (_, words) in wording.PAIRS.items() if numbers[kind]]


def _charts(log: Sequence[Mapping[str, Any]]) -> list[Markup]:
    marks: dict[int, str] = {}
    for step, figures in enumerate(log):
        name = str(figures.get("phase", ""))
        if name and (step == 0 or log[step - 1].get("phase") != name):
            marks[step] = name
    charts = []
    for index, (title, unit, wanted) in enumerate(_CHARTS):
        series = [
            svg.Series(_SERIES_NAMES.get(line.name.partition("/")[0], line.name), line.values)
            for line in svg.series_of(log, wanted)
        ]
        if series:
            charts.append(svg.curves(series, title=title, unit=unit, chart_id=f"curve-{index}", marks=marks))
    return charts


def _css() -> str:
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), "report.css")[0]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("practicum.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        visible=wording.visible,
        one_line=wording.one_line,
        percent=wording.percent,
        points=wording.points,
        number=wording.number,
        count=wording.count,
        plural=wording.plural,
        duration=wording.duration,
        when=wording.when,
        rule_name=wording.rule_name,
        fate_words=wording.fate_words,
        later_words=wording.later_words,
    )
    made.globals.update(STATES=wording.STATES, PAIRS=wording.PAIRS, FATES=wording.FATES)
    return made

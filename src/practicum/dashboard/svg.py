"""Charts as inline SVG: no script, no remote part, readable at any width.

Positions across are percentages and text is in pixels, so a narrow screen moves marks closer and shrinks no letter.
Every chart has a title and a description with its numbers; before and after differ in shape as well as in colour.
Colours are attributes that a style sheet may override by class (`before`, `after`, `bound`, ...).

They must not know where the numbers come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from practicum.dashboard.records import Rate, Share
from practicum.dashboard.wording import number, one_line, percent, rule_name
from practicum.types.policies import GateCheck

_ORANGE, _BLUE, _GREY, _INK = "#b3560b", "#1f5fbf", "#8a8f98", "#1c2127"
_SERIES = ((_BLUE, "", "after"), (_ORANGE, "7 4", "before"), (_GREY, "2 4", "third"))


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: a value a step, None where there is none."""

    name: str
    values: Sequence[float | None]


def rates_plot(rates: Sequence[Rate], chart_id: str = "rates") -> Markup:
    """Share of answers that meet each rule, before and after, with 95% intervals, on 0 to 100%."""
    top, row = 26, 62
    height = top + row * len(rates) + 36
    floor = top + row * len(rates)
    parts = [_legend()]
    for tick in (0, 25, 50, 75, 100):
        x, anchor = _across(tick / 100), {0: "start", 100: "end"}.get(tick, "middle")
        parts.append(_line(x, x, top, floor, cls="grid", stroke=_GREY, opacity=0.35))
        parts.append(_text("0" if tick == 0 else "100" if tick == 100 else x, floor + 14, f"{tick}%", anchor, "tick"))
    parts.append(_text("50", floor + 30, "share of held-out answers that meet the rule", "middle", "axis"))
    for index, rate in enumerate(rates):
        y = top + row * index
        change = f"{percent(rate.before.estimate)} → {percent(rate.after.estimate)}"
        parts.append(_text("0", y + 18, one_line(rule_name(rate.name), 28), "start", "name"))
        parts.append(_text("100", y + 18, change, "end", "value"))
        parts += [_whisker(rate.before, y + 34, "before"), _whisker(rate.after, y + 50, "after")]
    words = "; ".join(
        f"{one_line(rule_name(rate.name), 60)}: before {_share_words(rate.before)}, after {_share_words(rate.after)}"
        for rate in rates
    )
    return _svg(chart_id, height, "How often answers meet each rule, before and after", words, parts)


def gate_bar(check: GateCheck, chart_id: str) -> Markup:
    """One gate line: the estimate with its 95% interval against its bound; the allowed side is shaded."""
    upper = "at most" in check.rule
    known = [v for v in (check.low, check.high, check.estimate, check.bound, 0.0) if math.isfinite(v)]
    spread = (max(known) - min(known)) or 0.1
    first, last = min(known) - 0.15 * spread, max(known) + 0.15 * spread

    def place(value: float) -> str:
        return _across(min(1.0, max(0.0, (value - first) / (last - first))) if not math.isnan(value) else 0.5)

    bound, zero = place(check.bound), place(0.0)
    start, width = ("0", bound) if upper else (bound, f"{100 - float(bound):.2f}")
    parts = [
        Markup('<rect class="allowed" x="{}%" y="2" width="{}%" height="34" fill="{}" fill-opacity="0.10"/>').format(
            start, width, _BLUE
        ),
        _line(zero, zero, 2, 36, cls="grid", stroke=_GREY, opacity=0.7),
        _line(bound, bound, 0, 38, cls="bound", stroke=_INK, dash="4 3", width=1.5),
    ]
    if not math.isnan(check.estimate):
        cls, colour = ("after", _BLUE) if check.passed else ("before", _ORANGE)
        low, high = place(check.low), place(check.high)
        parts.append(_line(low, high, 19, 19, cls=cls, stroke=colour, width=4, opacity=0.55))
        parts += [_line(x, x, 13, 25, cls=cls, stroke=colour, width=2) for x in (low, high)]
        parts.append(_mark(place(check.estimate), 19, "after" if check.passed else "cross"))
    near_zero = abs(float(zero) - float(bound)) < 30
    parts.append(_text(bound, 52, f"bound {number(check.bound, sign=True)}", _anchor(bound), "tick"))
    if not near_zero:
        parts.append(_text(zero, 52, "0", _anchor(zero), "tick"))
    parts.append(_text("50", 67, _unit(check), "middle", "axis"))
    words = (
        f"Estimate {number(check.estimate, sign=True)}, 95% interval {number(check.low, sign=True)} to "
        f"{number(check.high, sign=True)}, bound {number(check.bound, sign=True)}, n {check.n}: "
        f"{'held' if check.passed else 'not held'}."
    )
    return _svg(chart_id, 72, one_line(check.name, 120), words, parts)


def curves(
    series: Sequence[Series], *, title: str, unit: str, chart_id: str, marks: Mapping[int, str] | None = None
) -> Markup:
    """Lines over training steps [n], with gaps where a value is missing; `marks` name phases by their first step."""
    length = max((len(line.values) for line in series), default=0)
    known = [v for line in series for v in line.values if v is not None and math.isfinite(v)]
    low, high = (min([0.0, *known]), max([0.0, *known])) if known else (0.0, 1.0)
    high = high if high > low else low + 1.0
    legend = 18 * len(series) if len(series) > 1 else 0
    top, tall = 66 + legend, 130
    parts = [_text("0", 14, title, "start", "name"), _text("100", 14, unit, "end", "axis")]
    for index, line in enumerate(series if legend else ()):
        colour, dash, cls = _SERIES[index % len(_SERIES)]
        row = 32 + 18 * index
        parts.append(_plain_line(0, 26, row - 4, cls, colour, dash))
        parts.append(Markup('<text class="tick" x="34" y="{}">{}</text>').format(row, one_line(line.name, 40)))
    paths = [_path(line.values, length, low, high, index) for index, line in enumerate(series)]
    parts.append(
        Markup('<svg x="0" y="{}" width="100%" height="{}" viewBox="0 0 1000 100" preserveAspectRatio="none">').format(
            top, tall
        )
        + Markup("").join(paths)
        + Markup("</svg>")
    )
    for value in (low, (low + high) / 2, high):
        y = top + tall * (1 - (value - low) / (high - low))
        parts.append(_line("0", "100", y, y, cls="grid", stroke=_GREY, opacity=0.35))
        parts.append(_text("0", y - 3, f"{value:.3g}", "start", "tick"))
    for place, (step, name) in enumerate(sorted((marks or {}).items())):
        x, level = _step_across(step, length), top - 19 - 15 * (place % 2)
        if step:
            parts.append(_line(x, x, level + 3, top + tall, cls="bound", stroke=_GREY, dash="3 3"))
        parts.append(_text(x, level, one_line(name, 24), _anchor(x), "tick"))
    if not known:
        parts.append(_text("50", top + tall / 2, "no figures on record", "middle", "tick"))
    parts += [
        _text("0", top + tall + 16, "step 1", "start", "tick"),
        _text("100", top + tall + 16, f"step {length}", "end", "tick"),
    ]
    words = "; ".join(f"{one_line(line.name, 60)}: {_span_words(line.values)}" for line in series) or "No figures."
    return _svg(chart_id, top + tall + 22, title, f"{unit}. {words}", parts)


# -- parts -------------------------------------------------------------------------------------------------------


def _svg(chart_id: str, height: float, title: str, words: str, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="100%" height="{height:g}" overflow="visible" '
        'role="img" aria-labelledby="{id}-t {id}-d" font-family="system-ui, sans-serif" font-size="13">'
        '<title id="{id}-t">{title}</title><desc id="{id}-d">{words}</desc>{body}</svg>'
    ).format(height=height, id=chart_id, title=title, words=words, body=Markup("\n").join(parts))


def _across(share: float) -> str:
    """Percent across for a share in [0, 1], with room for half a mark at the ends."""
    return f"{2 + 96 * share:.2f}"


def _step_across(step: int, length: int) -> str:
    return f"{100 * step / max(1, length - 1):.2f}"


def _anchor(x: str) -> str:
    return "start" if float(x) < 15 else "end" if float(x) > 85 else "middle"


def _text(x: str, y: float, words: str, anchor: str, cls: str) -> Markup:
    bold = Markup(' font-weight="600"') if cls in ("name", "value") else ""
    size = Markup(' font-size="12"') if cls in ("tick", "axis") else ""
    return Markup('<text class="{}" x="{}%" y="{:g}" text-anchor="{}" fill="{}"{}{}>{}</text>').format(
        cls, x, y, anchor, _INK, bold, size, words
    )


def _line(
    x1: str,
    x2: str,
    y1: float,
    y2: float,
    *,
    cls: str,
    stroke: str,
    width: float = 1,
    dash: str = "",
    opacity: float = 1,
) -> Markup:
    dashes = Markup(' stroke-dasharray="{}"').format(dash) if dash else ""
    return Markup(
        '<line class="{}" x1="{}%" x2="{}%" y1="{:g}" y2="{:g}" stroke="{}" stroke-width="{:g}" '
        'stroke-opacity="{:g}"{}/>'
    ).format(cls, x1, x2, y1, y2, stroke, width, opacity, dashes)


def _plain_line(x1: float, x2: float, y: float, cls: str, stroke: str, dash: str) -> Markup:
    return Markup(
        '<line class="{}" x1="{:g}" x2="{:g}" y1="{:g}" y2="{:g}" stroke="{}" stroke-width="2" stroke-dasharray="{}"/>'
    ).format(cls, x1, x2, y, y, stroke, dash)


_SHAPES: Mapping[str, Markup] = {
    "before": Markup(f'<circle class="before hollow" r="5.5" fill="#fff" stroke="{_ORANGE}" stroke-width="2.5"/>'),
    "after": Markup(f'<path class="after solid" d="M0-7.5 7.5 0 0 7.5-7.5 0Z" fill="{_BLUE}"/>'),
    "cross": Markup(
        f'<path class="before" d="M-5.5-5.5 5.5 5.5M5.5-5.5-5.5 5.5" fill="none" stroke="{_ORANGE}" stroke-width="3"/>'
    ),
}


def _mark(x: str, y: float, shape: str) -> Markup:
    return Markup('<svg x="{}%" y="{:g}" width="1" height="1" overflow="visible">{}</svg>').format(x, y, _SHAPES[shape])


def _whisker(share: Share, y: float, shape: str) -> Markup:
    if share.estimate is None:
        return _text("50", y + 4, f"{shape}: not measured", "middle", "tick")
    colour = _ORANGE if shape == "before" else _BLUE
    low, high = _across(share.low), _across(share.high)
    bar = _line(low, high, y, y, cls=shape, stroke=colour, width=2.5, opacity=0.6)
    caps = [_line(x, x, y - 4, y + 4, cls=shape, stroke=colour, width=2) for x in (low, high)]
    return Markup("").join([bar, *caps, _mark(_across(share.estimate), y, shape)])


def _legend() -> Markup:
    circle, diamond = _SHAPES["before"], _SHAPES["after"]
    return Markup(
        '<svg x="8" y="9" width="1" height="1" overflow="visible">{}</svg>'
        '<text class="tick" x="20" y="13">before</text>'
        '<svg x="86" y="9" width="1" height="1" overflow="visible">{}</svg>'
        '<text class="tick" x="99" y="13">after</text>'
        '<text class="tick" x="100%" y="13" text-anchor="end">bars: 95% intervals</text>'
    ).format(circle, diamond)


def _path(values: Sequence[float | None], length: int, low: float, high: float, index: int) -> Markup:
    """A line, broken where a value is missing; a lone value is a dot."""
    colour, dash, cls = _SERIES[index % len(_SERIES)]
    commands, drawing, count = [], False, max(1, length - 1)
    for step, value in enumerate(values):
        if value is None or not math.isfinite(value):
            drawing = False
            continue
        point = f"{1000 * step / count:.1f} {100 * (1 - (value - low) / (high - low)):.2f}"
        commands.append(f"L{point}" if drawing else f"M{point}h0")
        drawing = True
    return Markup(
        '<path class="{} line" d="{}" fill="none" stroke="{}" stroke-width="2" stroke-dasharray="{}" '
        'stroke-linecap="round" stroke-linejoin="round" vector-effect="non-scaling-stroke"/>'
    ).format(cls, "".join(commands), colour, dash)


def _unit(check: GateCheck) -> str:
    if "nats" in check.name:
        return "nats per token"
    return "candidate minus live version"


def _share_words(share: Share) -> str:
    if share.estimate is None:
        return "not measured"
    return f"{percent(share.estimate)} ({percent(share.low)} to {percent(share.high)}, n {share.n})"


def _span_words(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return "no figures"
    return f"{known[0]:.4g} at first, {known[-1]:.4g} at last, over {len(known)} steps"


def series_of(log: Sequence[Mapping[str, object]], wanted: Callable[[str], bool]) -> list[Series]:
    """One series for each figure of a training log whose name is wanted."""
    names = dict.fromkeys(name for figures in log for name in figures if wanted(name))
    return [Series(name, [_float(figures.get(name)) for figures in log]) for name in names]


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

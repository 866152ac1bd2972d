"""Charts: well-formed, described, placed where the numbers say, and whole with missing figures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from practicum.dashboard.records import Rate, Share
from practicum.dashboard.svg import Series, curves, gate_bar, rates_plot, series_of
from practicum.types.policies import GateCheck

SVG = "{http://www.w3.org/2000/svg}"
BEFORE = Share(estimate=0.25, low=0.1, high=0.5, n=40)
AFTER = Share(estimate=1.0, low=0.9, high=1.0, n=40)


def parsed(chart: str) -> ElementTree.Element:
    root = ElementTree.fromstring(chart)
    ids = (root.get("aria-labelledby") or "").split()
    assert root.get("role") == "img"
    assert [root.find(f"{SVG}title").get("id"), root.find(f"{SVG}desc").get("id")] == ids  # type: ignore[union-attr]
    return root


def words(root: ElementTree.Element) -> str:
    return " | ".join(text.strip() for text in root.itertext() if text.strip())


def check(**values: float | str | bool) -> GateCheck:
    given = {
        "estimate": 0.0,
        "low": -0.1,
        "high": 0.1,
        "bound": -0.05,
        "passed": True,
        "n": 9,
        "name": "x",
        "rule": "y",
    }
    return GateCheck(**(given | values))  # type: ignore[arg-type]


def test_rates_stand_where_they_belong() -> None:
    root = parsed(rates_plot([Rate(name="brief", before=BEFORE, after=AFTER)]))
    marks = [svg.get("x") for svg in root.findall(f"{SVG}svg") if str(svg.get("x")).endswith("%")]
    assert marks == ["26.00%", "98.00%"]  # 2 + 96 * 0.25 and 2 + 96 * 1
    assert "25% → 100%" in words(root) and "brief: before 25% (10% to 50%, n 40)" in words(root)


def test_before_and_after_differ_in_shape() -> None:
    root = parsed(rates_plot([Rate(name="brief", before=BEFORE, after=AFTER)]))
    assert root.iter(f"{SVG}circle") and len(list(root.iter(f"{SVG}circle"))) == 2  # legend and mark
    assert len(list(root.iter(f"{SVG}path"))) == 2


def test_a_rate_that_was_not_measured_says_so() -> None:
    nothing = Share(estimate=None, low=0.0, high=1.0, n=0)
    assert "after: not measured" in words(parsed(rates_plot([Rate(name="brief", before=BEFORE, after=nothing)])))


def test_a_hostile_name_is_escaped() -> None:
    chart = rates_plot([Rate(name="<script>&\u202e", before=BEFORE, after=AFTER)])
    assert "<script" not in chart and "&lt;script&gt;&amp;⟨U+202E⟩" in chart


def test_the_allowed_side_of_a_bound_is_shaded() -> None:
    above = parsed(gate_bar(check(rule="the interval must lie above -0.050"), "g"))
    below = parsed(gate_bar(check(rule="must be at most 0.150", bound=0.15), "g"))
    low, high = above.find(f"{SVG}rect"), below.find(f"{SVG}rect")
    assert low is not None and high is not None
    assert low.get("x") != "0%" and high.get("x") == "0%"


def test_a_gate_line_tells_its_numbers() -> None:
    found = words(parsed(gate_bar(check(name="stays on the question"), "g")))
    assert "Estimate +0.000, 95% interval -0.100 to +0.100, bound -0.050, n 9: held." in found
    assert "stays on the question" in found and "bound -0.050" in found


def test_a_gate_line_without_data_is_still_a_chart() -> None:
    empty = check(estimate=float("nan"), low=float("-inf"), high=float("inf"), n=0, passed=False)
    found = parsed(gate_bar(empty, "g"))
    assert "Estimate –, 95% interval −∞ to ∞" in words(found)
    assert "nan" not in gate_bar(empty, "g").lower()


def test_a_gate_line_whose_figures_are_all_zero() -> None:
    parsed(gate_bar(check(estimate=0.0, low=0.0, high=0.0, bound=0.0), "g"))


def test_curves_break_where_a_value_is_missing() -> None:
    chart = curves([Series("loss", [1.0, 0.5, None, 0.5, float("nan"), 0.0])], title="Loss", unit="nats", chart_id="c")
    path = re.search(r' d="([^"]*)"', chart)
    assert path and path[1] == "M0.0 0.00h0L200.0 50.00M600.0 50.00h0M1000.0 100.00h0"
    root = parsed(chart)
    assert "1 at first, 0 at last, over 4 steps" in words(root) and "step 6" in words(root) and "nats" in words(root)


def test_curves_without_figures() -> None:
    found = words(parsed(curves([Series("loss", [None, None])], title="Loss", unit="nats", chart_id="c")))
    assert "no figures on record" in found
    parsed(curves([], title="Loss", unit="nats", chart_id="c"))


def test_series_keep_the_gaps_of_a_log() -> None:
    log = [{"a/loss": 1.0}, {"skipped": True}, {"a/loss": float("inf"), "b/loss": 2}]
    found = series_of(log, lambda name: name.endswith("/loss"))
    assert [(line.name, line.values) for line in found] == [
        ("a/loss", [1.0, None, None]),
        ("b/loss", [None, None, 2.0]),
    ]

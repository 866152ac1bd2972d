"""The terminal view and the JSON: narrow, plain where plain is wanted, and deaf to what texts try."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from report_scenes import Scene, example, examples, gate_figures, gate_lines, line, ordinary
from rich.console import Console
from test_report_page import hostile

from practicum.dashboard import build, render_json, show
from practicum.dashboard.diff import word_diff
from practicum.dashboard.records import Report


def printed(report: Report, *, encoding: str = "utf-8", **options: object) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    show(report, Console(file=file, width=100, **options))  # type: ignore[arg-type]
    return raw.getvalue().decode(encoding)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return ordinary(tmp_path)


def test_it_fits_a_hundred_columns_and_is_plain(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures(), examples=examples())
    text = printed(build(scene.store, scene.registry))
    assert max(len(row) for row in text.splitlines()) <= 100
    assert "\x1b" not in text
    for words in ("✔ promoted", "every gate", "78%", "61.2%", "-0.4 points", "0.0413", "✔ held", "trained as clone"):
        assert words in text, words


def test_regressions_are_shown(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures(), examples=examples())
    text = printed(build(scene.store, scene.registry))
    assert "9 now as asked, 2 got worse" in text and "▼ got worse (lost: brief)" in text


def test_colour_only_on_a_terminal_that_wants_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    scene.run("decide", checks=gate_lines(), figures=gate_figures())
    report = build(scene.store, scene.registry)
    assert "\x1b[" in printed(report, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", printed(report, force_terminal=True, color_system="standard"))


def test_hostile_texts_send_nothing_to_the_terminal(tmp_path: Path) -> None:
    scene = hostile(tmp_path)
    report = build(scene.store, scene.registry)
    bad = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
    assert not bad.search(printed(report))
    assert "␛[31mred" in printed(report)
    assert not bad.search(render_json(report))


def test_rich_markup_in_a_text_is_only_text(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.say("[bold red]shorter[/bold red] :boom: [link=file:///x]y[/link]")
    scene.run("curate")
    text = printed(build(scene.store, scene.registry))
    assert "[bold red]shorter[/bold red] :boom:" in text


def test_a_terminal_that_cannot_write_the_symbols_still_gets_the_words(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures(), examples=examples())
    assert "promoted" in printed(build(scene.store, scene.registry), encoding="ascii")


@pytest.mark.parametrize("upto", ["collect", "curate", "train", "register", "gate"])
def test_unfinished_runs(scene: Scene, upto: str) -> None:
    scene.run(upto, checks=gate_lines(), figures=gate_figures(), examples=examples())
    assert f"last finished step is {upto}" in " ".join(printed(build(scene.store, scene.registry)).split())


def test_stopped_refused_and_without_graders(scene: Scene) -> None:
    scene.run("curate", run_id="run_1", stopped="20 steps in a row had no signal.")
    assert "■ stopped" in printed(build(scene.store, scene.registry))
    scene.run("decide", run_id="run_2", checks=gate_lines(-0.051), figures=gate_figures())
    assert "✖ not held" in printed(build(scene.store, scene.registry))
    lines = (line("target: held-out feedback, wins minus losses", 0.55, 0.2, 0.1, True), *gate_lines()[1:])
    rows = [example("call_1", None, None)]
    scene.run("decide", run_id="run_3", checks=lines, figures=gate_figures() | {"rates": {}}, examples=rows)
    text = printed(build(scene.store, scene.registry))
    assert "wins minus losses" in text and "95%: +0.35 to +0.75, n 40" in text


def test_the_json_is_whole_and_valid(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.say("long " * 200_000)
    scene.say("lone \ud800 surrogate", form="correction")
    lines = (line("target: none", float("nan"), 0.0, 0.1, False), *gate_lines()[1:])
    scene.run("decide", checks=lines, figures=gate_figures(), examples=examples())
    report = build(scene.store, scene.registry)
    body = json.loads(render_json(report), parse_constant=pytest.fail)
    assert body["verdict"] == report.verdict and body["state"] == "refused"
    assert body["checks"][0]["estimate"] is None
    assert len(body["items"][0]["text"]) == 1_000_000 and body["items"][1]["text"] == "lone \ud800 surrogate"
    assert body["rates"][0]["after"]["estimate"] == report.rates[0].after.estimate
    assert len(body["log"]) == 42 and len(body["pairs"]) == 13


def test_a_diff_leaves_out_the_end_of_turn_and_gives_up_on_long_texts() -> None:
    assert word_diff("Yes, it is.<|im_end|>", "Yes, it is.") == (("same", "Yes, it is."),)
    assert word_diff("a b c", "a c d") == (("same", "a "), ("gone", "b "), ("same", "c "), ("new", "d"))
    assert word_diff("a " * 401, "b") == () and word_diff("", "b") == ()

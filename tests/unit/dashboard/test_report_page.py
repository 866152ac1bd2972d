"""The page: inert whatever the texts are, self-contained, bounded, and its numbers are the records' numbers."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_scenes import Scene, example, examples, gate_figures, gate_lines, line, ordinary

from practicum.dashboard import build, render_html, write_html
from practicum.dashboard.page import MOST_BYTES
from practicum.dashboard.wording import visible

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)></style></title></details>"
    '"\'><a href="javascript:alert(3)">x</a>{{ 7 * 7 }}{% raw %}&lt;b&gt;'
    "\x1b[31mred\x1b]0;owned\x07\x9b2J\x00\x08\x7f\u202egnp.exe\u2066\u200b\ud800\ufeff\U000e0041 end"
)


ALLOWED = """
html head meta title style body main header section article div p h1 h2 h4 span b small ins del ul li dl dt dd
details summary table caption thead tbody tr th td svg desc text line rect path circle
"""


class Tags(HTMLParser):
    """Every tag and attribute that a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return ordinary(tmp_path)


def hostile(folder: Path) -> Scene:
    """Hostile text wherever a person, a model or a grader's author can put some."""
    scene = Scene(folder)
    scene.say(HOSTILE, source="helpdesk/" + HOSTILE)
    scene.say(HOSTILE + " team", form="correction", served=HOSTILE)
    scene.say(HOSTILE, excluded=HOSTILE)
    scene.say("short", split="heldout")
    figures = gate_figures()
    figures["rates"][HOSTILE] = figures["rates"]["brief"]
    row = example("call_1", (0, 0), (1, 1), question=HOSTILE, asked=HOSTILE, before=HOSTILE, after=HOSTILE)
    row["verdicts_after"][HOSTILE] = row["verdicts_before"][HOSTILE] = 1.0
    lines = (line("target: all of " + HOSTILE, 0.5, 0.1, 0.1, True), *gate_lines()[1:])
    log = [{"phase": HOSTILE, "step": 0, HOSTILE + "/loss": 1.0}]
    scene.run("decide", checks=lines, figures=figures, examples=[row], log=log)
    return scene


def assert_inert(page: str) -> None:
    found = Tags(page)
    assert found.tags <= set(ALLOWED.split())
    names = {name for name, _ in found.attributes}
    assert not names & {"src", "href", "style", "srcset", "action", "xlink:href"}
    assert not [name for name in names if name.startswith("on")]
    assert "<script" not in page.lower()
    bad = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
    assert not bad.search(page)
    page.encode()


def test_hostile_texts_stay_inert(tmp_path: Path) -> None:
    scene = hostile(tmp_path)
    page = render_html(build(scene.store, scene.registry))
    assert_inert(page)
    assert "&lt;script&gt;alert(1)" in page and "{{ 7 * 7 }}" in page
    assert (
        "␛[31mred" in page and "⟨U+202E⟩gnp.exe" in page and "⟨U+D800⟩" in page and "␀" in page and "⟨U+009B⟩" in page
    )


def test_a_policy_without_scripts_and_with_the_style_sheets_hash(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures(), examples=examples())
    page = render_html(build(scene.store, scene.registry))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    css = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert policy and css
    digest = base64.b64encode(hashlib.sha256(css[1].encode()).digest()).decode()
    said = policy[1].replace("&#39;", "'")
    assert said == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_nothing_remote(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures(), examples=examples())
    page = render_html(build(scene.store, scene.registry))
    assert set(re.findall(r"https?://[^\s\"'<]*", page)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page and "url(" not in page
    assert_inert(page)


def test_the_numbers_on_the_page_are_the_records(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures(), examples=examples())
    page = render_html(build(scene.store, scene.registry))
    for words in (
        "<title>What the agent learned</title>",
        "0% → 78%",
        "15% → 92%",
        "0% → 85%",
        "before 15% (7% to 29%, n 40), after 92% (80% to 97%, n 40)",
        "96 → 27",
        "61.2% → 60.8%",
        "-0.4 points",
        "0.0413",
        "+0.775 [+0.650, +0.900] · bound +0.100 · n 40",
        "20,480",
        "81,234",
        "42 (1 skipped: no signal)",
        "5 min 12 s",
        "0 → 1 (live); version 1 is live now",
        "5f" * 32,
        "▲ 9 now as asked",
        "▼ 2 got worse",
    ):
        assert words in page, words


def test_every_regression_is_on_the_page(scene: Scene) -> None:
    lost = [example(f"l{i}", (1, 1), (0, 1), after=f"worse answer {i:02d}") for i in range(25)]
    gained = [example(f"g{i}", (0, 0), (1, 1)) for i in range(5)]
    scene.run("decide", checks=gate_lines(), figures=gate_figures(), examples=[*gained, *lost])
    page = render_html(build(scene.store, scene.registry))
    assert all(f"worse answer {i:02d}" in page for i in range(25))
    assert "▼ 25 got worse" in page and "17 more answers that got worse" in page


@pytest.mark.parametrize("upto", ["collect", "curate", "train", "register", "gate", "decide"])
def test_a_run_that_got_so_far(scene: Scene, upto: str) -> None:
    scene.run(upto, checks=gate_lines(-0.051), figures=gate_figures(), examples=examples())
    page = render_html(build(scene.store, scene.registry))
    assert_inert(page)
    assert ("✖ refused" if upto == "decide" else "… unfinished") in page
    assert ("✖ not held" in page) == (upto in ("gate", "decide"))


def test_a_stopped_run_and_one_without_graders(scene: Scene) -> None:
    scene.run("curate", stopped="A fresh answer has come down to 1.5 tokens, below 3.0.")
    page = render_html(build(scene.store, scene.registry))
    assert "■ stopped" in page and "1.5 tokens, below 3.0" in page and "No training log is on record." in page
    figures = gate_figures() | {"rates": {}}
    lines = (line("target: held-out feedback, wins minus losses", 0.55, 0.2, 0.1, True), *gate_lines()[1:])
    scene.run("decide", run_id="run_02", checks=lines, figures=figures, examples=[example("call_1", None, None)])
    page = render_html(build(scene.store, scene.registry))
    assert "No graders are configured" in page and "+0.550" in page and "not measured" not in page


def test_long_texts_are_folded_and_the_page_stays_small(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.say("\x1b" * 1_000_000)
    for index in range(90):
        scene.say(f"{index} " + "<&\u202e" * 7_000)
    long = "\u202e" * 40_000
    rows = [example(f"c{i}", (1, 1), (0, 0), question=long, before=long, after=long, asked=long) for i in range(40)]
    scene.run("decide", checks=gate_lines(), figures=gate_figures(), examples=rows)
    page = render_html(build(scene.store, scene.registry))
    assert len(page.encode()) < MOST_BYTES
    assert "(1,000,000 characters)" in page and "[cut here: " in page
    assert_inert(page)


def test_withdrawn_words_are_not_on_the_page(scene: Scene) -> None:
    secret = scene.say("My password is hunter2, forget it.")
    scene.run("decide", checks=gate_lines(), figures=gate_figures())
    scene.event(secret, "retract", "My password is hunter2, forget it.", "comment", "helpdesk/anna", 1_800_009_999.0)
    page = render_html(build(scene.store, scene.registry))
    assert "hunter2" not in page
    assert "(withdrawn by its author)" in page and "retracted since; this version learned from it" in page


def test_a_correction_shows_what_it_changed(scene: Scene) -> None:
    scene.say("We are on it.\n\n— The team", form="correction", served="We are on it. Anything else?")
    scene.run("curate")
    page = render_html(build(scene.store, scene.registry))
    assert "<del>Anything else? </del><ins>— The team</ins>" in page
    scene.say("We are on it.\n\n— The team", form="correction", served="Something quite different.")
    scene.run("curate", run_id="run_02")
    assert "Anything else?" not in render_html(build(scene.store, scene.registry))


def test_writing_is_whole_or_not_at_all(scene: Scene, tmp_path: Path) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures())
    report = build(scene.store, scene.registry)
    path = write_html(report, tmp_path / "new" / "report.html")
    assert path.read_text("utf-8") == render_html(report)
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    blocked = tmp_path / "folder.html"
    blocked.mkdir()
    with pytest.raises(OSError):
        write_html(report, blocked)
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".folder")]


def test_visible_leaves_ordinary_writing_alone() -> None:
    text = "Grüße, naïve café — 東京 مرحبا שלום 👩\u200d👧 a\tb\nnext"
    assert visible(text) == text
    assert visible("a\r\nb") == "a\nb"

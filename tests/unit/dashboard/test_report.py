"""A report holds what the steps recorded, in every state of a run, and makes nothing up."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_scenes import (
    NOW,
    UNTIL,
    Scene,
    example,
    examples,
    gate_figures,
    gate_lines,
    line,
    ordinary,
    rates,
    training_log,
)

from practicum.dashboard import build
from practicum.dashboard.pairs import choose, pair_from
from practicum.errors import NotFound


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return ordinary(tmp_path)


def test_without_a_run_the_hint_names_the_command(tmp_path: Path) -> None:
    empty = Scene(tmp_path)
    with pytest.raises(NotFound, match="practicum learn"):
        build(empty.store, empty.registry)


def test_an_unknown_run_is_not_found(scene: Scene) -> None:
    scene.run("curate")
    with pytest.raises(NotFound, match="run_01"):
        build(scene.store, scene.registry, "run_99")


def test_the_newest_run_is_the_default_and_another_can_be_named(scene: Scene) -> None:
    scene.run("curate", run_id="run_a")
    scene.run("curate", run_id="run_b")
    assert build(scene.store, scene.registry).run_id == "run_b"
    assert build(scene.store, scene.registry, "run_a").run_id == "run_a"


def test_a_promoted_run(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures(), examples=examples())
    report = build(scene.store, scene.registry)
    assert (report.state, report.previous, report.version, report.status, report.live) == ("promoted", 0, 1, "live", 1)
    assert report.verdict == (
        "6 people gave 4 comments, 1 correction and 1 other signal; on 40 held-out prompts, answers that meet every "
        "rule (brief, sign off) went from 0% to 78% (+77.5 points, 95% interval +65.0 to +90.0), so version 1 went "
        "live: every gate line held."
    )
    assert [rate.name for rate in report.rates] == ["all", "brief", "sign_off"]
    recorded = rates()["brief"]["after"]
    found = report.rates[1].after
    assert (found.estimate, found.low, found.high, found.n) == tuple(
        recorded[k] for k in ("estimate", "low", "high", "n")
    )
    assert report.checks == gate_lines() and report.target == gate_lines()[0]
    assert (report.measures.words_before, report.measures.words_after) == (96.0, 27.0)
    assert (report.measures.regression_before, report.measures.regression_after, report.measures.kl_general) == (
        0.612,
        0.608,
        0.0413,
    )
    assert (report.work.sampled_tokens, report.work.trained_tokens, report.work.steps, report.work.skipped_steps) == (
        20_480,
        81_234,
        42,
        1,
    )
    assert report.manifest_digest == "5f" * 32 and report.model == "smollm2-135m-instruct"
    assert report.log == tuple(training_log())
    assert report.window.unaccounted == 0


def test_stages_are_the_time_between_records(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures())
    stages = build(scene.store, scene.registry).stages
    assert [(stage.name, stage.elapsed_s) for stage in stages] == [
        ("collect and curate", 3.0),
        ("train", 312.0),
        ("register", 1.0),
        ("gate", 95.0),
        ("decide", 1.0),
    ]
    assert [stage.worked_s for stage in stages] == [None, 287.5, None, 93.1, None]


def test_each_item_has_its_fate(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures())
    items = build(scene.store, scene.registry).items
    assert [(item.form, item.use, item.fate) for item in items] == [
        ("comment", "hindsight", "trained"),
        ("comment", "hindsight", "trained"),
        ("correction", "clone", "trained"),
        ("thumb", "polarity", "unused"),
        ("comment", "hindsight", "heldout"),
        ("comment", None, "excluded"),
    ]
    assert items[0].source == "helpdesk/anna" and items[0].at == NOW
    assert items[-1].reason == "1 words; comments of 2 to 200 are read"
    assert items[2].served.startswith("Thank you for writing")


def test_a_use_whose_loss_is_in_no_step_taught_nothing(scene: Scene) -> None:
    """No corrected answer was trained on: the log has one phase only."""
    scene.run("train", log=training_log(clone=0))
    fates = {item.use: item.fate for item in build(scene.store, scene.registry).items if item.fate != "heldout"}
    assert fates["clone"] == "unused" and fates["hindsight"] == "trained"


def test_an_unfinished_run_has_chosen_and_not_trained(scene: Scene) -> None:
    scene.run("curate")
    report = build(scene.store, scene.registry)
    assert report.state == "unfinished" and report.last_step == "curate"
    assert report.verdict.endswith("and the run has not finished: its last finished step is curate.")
    assert {item.fate for item in report.items} == {"chosen", "heldout", "excluded"}
    assert report.version is None and report.rates == () and report.checks == () and report.measures.kl_general is None


def test_a_run_without_any_step(scene: Scene) -> None:
    scene.store.create_run("run_new", {}, "running").result()
    report = build(scene.store, scene.registry)
    assert report.state == "unfinished" and report.items == () and report.stages == ()


def test_a_stopped_run_says_why(scene: Scene) -> None:
    scene.run("curate", stopped="2.31 nats per token away from the starting policy; the bound is 2.")
    report = build(scene.store, scene.registry)
    assert report.state == "stopped" and report.reason.startswith("2.31 nats")
    assert report.verdict.endswith(
        "but training stopped itself before a version was made: 2.31 nats per token away from the starting policy; "
        "the bound is 2."
    )
    assert report.version is None and report.live == 0


def test_a_refused_run_names_the_lines_that_did_not_hold(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(regression=-0.051), figures=gate_figures())
    report = build(scene.store, scene.registry)
    assert (report.state, report.status, report.live) == ("refused", "refused", 0)
    assert "went from 0% to 78%" in report.verdict
    assert report.verdict.endswith(
        "but version 1 was refused: 1 of 5 gate lines did not hold (regression suite: probability of the right option)."
    )


def test_a_pointer_that_moved_is_the_reason(scene: Scene) -> None:
    moved = {"refused_because": "Version 3 is live, but the decision replaces version 0."}
    scene.run("decide", checks=(), figures=gate_figures(), decision_extra=moved)
    report = build(scene.store, scene.registry)
    assert report.state == "refused" and "refused: Version 3 is live" in report.verdict


def test_a_run_without_graders_is_judged_by_feedback(scene: Scene) -> None:
    figures = gate_figures() | {"rates": {}}
    lines = (line("target: held-out feedback, wins minus losses", 0.55, 0.2, 0.1, True), *gate_lines()[1:])
    scene.run("decide", checks=lines, figures=figures, examples=[example("call_1", None, None)])
    report = build(scene.store, scene.registry)
    assert report.rates == () and report.pairs[0].kind == "ungraded" and report.shown == (0,)
    assert "wins minus losses are +0.55 on a scale from -1 to 1 (95% interval +0.35 to +0.75)" in report.verdict


def test_a_rolled_back_version_says_so(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures())
    scene.roll_back(to=0, previous=1, reason="Customers complained.")
    report = build(scene.store, scene.registry)
    assert (report.state, report.status, report.live) == ("promoted", "withdrawn", 0)
    assert report.verdict.endswith("; it was rolled back later: Customers complained.")


def test_what_an_author_does_later_is_marked_and_withdrawn_words_are_not_repeated(scene: Scene) -> None:
    scene.run("decide", checks=gate_lines(), figures=gate_figures())
    scene.event("fb_0000", "edit", "Much shorter!", "comment", "helpdesk/anna", UNTIL + 50)
    scene.event("fb_0001", "retract", None, "comment", "helpdesk/ben", UNTIL + 60)
    edited, retracted = build(scene.store, scene.registry).items[:2]
    assert (edited.later, edited.text) == ("edited", "Too long. I stopped reading after the second line.")
    assert (retracted.later, retracted.text, retracted.fate) == ("retracted", "", "trained")


def test_feedback_that_no_record_names_is_counted(scene: Scene) -> None:
    scene.run("curate", feedback=8)
    assert build(scene.store, scene.registry).window.unaccounted == 2


def test_a_check_without_cases_has_no_share(scene: Scene) -> None:
    figures = gate_figures() | {"rates": rates(n=40) | {"never": {"before": _nothing(), "after": _nothing()}}}
    scene.run("gate", checks=gate_lines(), figures=figures)
    rate = build(scene.store, scene.registry).rates[-1]
    assert rate.before.estimate is None and rate.before.n == 0


def _nothing() -> dict[str, float]:
    return {"estimate": float("nan"), "low": 0.0, "high": 1.0, "n": 0}


def test_a_model_in_a_folder_is_named_without_its_path(scene: Scene) -> None:
    scene.store.create_run("run_new", {"model": {"id": "/home/anna/models/tiny"}}, "running").result()
    assert build(scene.store, scene.registry).model == "tiny"


# -- pairs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ((0, 0), (1, 1), "newly"),
        ((0, 1), (1, 0), "worse"),
        ((1, 1), (1, 0), "worse"),
        ((0, 0), (1, 0), "better"),
        ((1, 1), (1, 1), "kept"),
        ((1, 0), (1, 0), "still"),
        (None, None, "ungraded"),
    ],
)
def test_the_kind_of_a_pair(before: tuple[float, float] | None, after: tuple[float, float] | None, kind: str) -> None:
    assert pair_from(example("call_1", before, after)).kind == kind


def test_newly_followed_pairs_come_first_and_regressions_keep_their_place() -> None:
    gained = [example(f"g{i}", (0, 0), (1, 1)) for i in range(20)]
    lost = [example(f"l{i}", (1, 1), (0, 1)) for i in range(4)]
    pairs = [pair_from(row) for row in [*gained, *lost]]
    kinds = [pairs[index].kind for index in choose(pairs)]
    assert kinds == ["newly"] * 8 + ["worse"] * 4


def test_many_regressions_leave_room_for_three_improvements() -> None:
    rows = [example(f"l{i}", (1, 1), (0, 1)) for i in range(30)] + [example(f"g{i}", (0, 0), (1, 1)) for i in range(5)]
    pairs = [pair_from(row) for row in rows]
    kinds = [pairs[index].kind for index in choose(pairs)]
    assert kinds == ["newly"] * 3 + ["worse"] * 9

"""The ledger: append-only, owned by its source, one standing thumb per source and target.

Pins the cases V1 (a second thumb changes the label) and V4 (late feedback joins the exact tokens).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from practicum.errors import Conflict, Forbidden, NotFound, RequestError
from practicum.feedback import Ledger
from practicum.store import Store, open_store
from practicum.types.calls import ModelCall


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        opened.put_call(make_call("call_1")).result()
        opened.put_call(make_call("call_2")).result()
        yield opened


@pytest.fixture
def ledger(store: Store, clock: Clock) -> Ledger:
    return Ledger(store, max_comment_chars=100, clock=clock)


def make_call(call_id: str, **changes: Any) -> ModelCall:
    values: dict[str, Any] = {
        "call_id": call_id,
        "session_id": "session_1",
        "principal": "team",
        "kind": "agent",
        "status": "complete",
        "created_at": 1.0,
        "policy_version": 0,
        "model": "practicum",
        "request": {},
    }
    return ModelCall(**(values | changes))


def test_feedback_on_a_call_and_on_a_session(ledger: Ledger) -> None:
    score = ledger.give("call", "call_1", "score", 2**53 + 1, "team").result()
    outcome = ledger.give("session", "session_1", "outcome", True, "team/anna").result()
    assert (score.value, score.revision, score.retracted, score.created_at) == (2**53 + 1, 0, False, 1000.0)
    assert outcome.value is True
    assert list(ledger.list()) == [score, outcome]
    assert list(ledger.list(target_id="session_1")) == [outcome]
    assert list(ledger.list(source="team")) == [score]
    assert list(ledger.list(principal="team")) == [score, outcome]
    assert list(ledger.list(principal="tea")) == []
    assert list(ledger.list(limit=1, after=score.feedback_id)) == [outcome]


@pytest.mark.parametrize(("kind", "target"), [("call", "none"), ("session", "call_1"), ("call", "session_1")])
def test_r2_an_unknown_target_is_not_found(ledger: Ledger, kind: Any, target: str) -> None:
    with pytest.raises(NotFound):
        ledger.give(kind, target, "score", 1, "team").result()
    assert list(ledger.list()) == []


def test_r2_a_bad_value_leaves_no_trace(ledger: Ledger) -> None:
    for value in (float("nan"), None, True, "good job"):
        with pytest.raises(RequestError):
            ledger.give("call", "call_1", "score", value, "team").result()
    assert list(ledger.list()) == []


def test_v1_a_second_thumb_changes_the_label_and_adds_none(ledger: Ledger, clock: Clock) -> None:
    up = ledger.give("call", "call_1", "thumb", "up", "team/anna").result()
    clock.now = 1001.0
    down = ledger.give("call", "call_1", "thumb", "down", "team/anna").result()
    assert (down.feedback_id, down.value, down.revision) == (up.feedback_id, "down", 1)
    assert (down.created_at, down.updated_at) == (1000.0, 1001.0)
    assert list(ledger.list(target_id="call_1")) == [down]
    assert [(event.action, event.value) for event in ledger.history(up.feedback_id)] == [
        ("give", "up"),
        ("edit", "down"),
    ]


def test_v1_other_sources_and_targets_keep_their_own_thumb(ledger: Ledger) -> None:
    ledger.give("call", "call_1", "thumb", "up", "team/anna").result()
    ledger.give("call", "call_1", "thumb", "down", "team/ben").result()
    ledger.give("call", "call_2", "thumb", "down", "team/anna").result()
    assert len(ledger.list()) == 3


def test_v1_the_same_thumb_again_changes_nothing(ledger: Ledger, clock: Clock) -> None:
    first = ledger.give("call", "call_1", "thumb", "up", "team").result()
    clock.now = 1001.0
    assert ledger.give("call", "call_1", "thumb", "up", "team").result() == first


def test_v1_a_thumb_after_a_retraction_is_a_new_item(ledger: Ledger) -> None:
    first = ledger.give("call", "call_1", "thumb", "up", "team").result()
    ledger.retract(first.feedback_id, "team").result()
    second = ledger.give("call", "call_1", "thumb", "down", "team").result()
    assert second.feedback_id != first.feedback_id
    assert list(ledger.list()) == [second]


def test_v1_a_resent_thumb_does_not_undo_a_later_change(ledger: Ledger) -> None:
    first = ledger.give("call", "call_1", "thumb", "up", "team", feedback_id="fb_a").result()
    ledger.give("call", "call_1", "thumb", "down", "team", feedback_id="fb_b").result()
    ledger.edit(first.feedback_id, "up", "team").result()
    again = ledger.give("call", "call_1", "thumb", "down", "team", feedback_id="fb_b").result()
    assert (again.feedback_id, again.value) == ("fb_a", "up")


def test_comments_may_be_several(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.give("call", "call_1", "comment", "shorter, please", "team").result()
    assert len(ledger.list()) == 2


def test_v4_late_feedback_joins_the_tokens_and_the_version_that_produced_them(
    store: Store, ledger: Ledger, clock: Clock
) -> None:
    old = make_call("old", policy_version=3, completion_ids=(5, 6), logprobs=(-0.5, -1.0), versions=(3, 3))
    store.put_call(old).result()
    store.put_call(make_call("new", policy_version=9, completion_ids=(7,), logprobs=(-0.1,), versions=(9,))).result()
    clock.now += 9 * 86400.0
    item = ledger.give("call", "old", "outcome", "ticket reopened", "tickets").result()
    assert store.get_call(item.target_id) == old
    assert item.created_at == 1000.0 + 9 * 86400.0


def test_a_client_made_id_makes_giving_idempotent(ledger: Ledger) -> None:
    first = ledger.give("call", "call_1", "comment", "shorter", "team", feedback_id="mine").result()
    assert first.feedback_id == "mine"
    assert ledger.give("call", "call_1", "comment", "shorter", "team", feedback_id="mine").result() == first
    edited = ledger.edit("mine", "longer", "team").result()
    assert ledger.give("call", "call_1", "comment", "shorter", "team", feedback_id="mine").result() == edited
    for target, value, source in [
        ("call_2", "shorter", "team"),
        ("call_1", "other", "team"),
        ("call_1", "shorter", "x"),
    ]:
        with pytest.raises(Conflict):
            ledger.give("call", target, "comment", value, source, feedback_id="mine").result()
    assert len(ledger.list()) == 1


def test_true_and_one_are_different_contents(ledger: Ledger) -> None:
    ledger.give("call", "call_1", "outcome", True, "team", feedback_id="mine").result()
    with pytest.raises(Conflict):
        ledger.give("call", "call_1", "outcome", 1, "team", feedback_id="mine").result()


def test_an_edit_is_a_revision_and_history_stays(ledger: Ledger, clock: Clock) -> None:
    item = ledger.give("call", "call_1", "score", 1, "team").result()
    clock.now = 1005.0
    edited = ledger.edit(item.feedback_id, 2, "team").result()
    assert (edited.value, edited.revision, edited.updated_at) == (2, 1, 1005.0)
    assert ledger.edit(item.feedback_id, 2, "team").result() == edited
    with pytest.raises(RequestError):
        ledger.edit(item.feedback_id, "good", "team").result()
    assert [event.value for event in ledger.history(item.feedback_id)] == [1, 2]
    assert list(ledger.list(since=1004.0)) == [edited]
    assert list(ledger.list(since=1006.0)) == []


def test_only_the_source_or_an_administrator_changes_an_item(ledger: Ledger) -> None:
    item = ledger.give("call", "call_1", "score", 1, "team/anna").result()
    for stranger in ("team", "team/ben", "other"):
        with pytest.raises(Forbidden):
            ledger.edit(item.feedback_id, 2, stranger).result()
        with pytest.raises(Forbidden):
            ledger.retract(item.feedback_id, stranger).result()
    edited = ledger.edit(item.feedback_id, 3, "root", admin=True).result()
    assert (edited.value, edited.source) == (3, "team/anna")
    assert ledger.retract(item.feedback_id, "root", admin=True).result().retracted
    assert [event.actor for event in ledger.history(item.feedback_id)] == ["team/anna", "root", "root"]


def test_a_retracted_item_stays_on_record_and_changes_no_more(ledger: Ledger) -> None:
    item = ledger.give("call", "call_1", "comment", "no", "team").result()
    gone = ledger.retract(item.feedback_id, "team").result()
    assert (gone.retracted, gone.value) == (True, "no")
    with pytest.raises(Conflict, match="retracted already"):
        ledger.retract(item.feedback_id, "team").result()
    with pytest.raises(Conflict):
        ledger.edit(item.feedback_id, "yes", "team").result()
    assert list(ledger.list()) == []
    assert list(ledger.list(include_retracted=True)) == [gone]
    assert ledger.get(item.feedback_id) == gone


def test_unknown_items_are_not_found(ledger: Ledger) -> None:
    for act in (ledger.get, ledger.history, lambda item: ledger.retract(item, "team").result()):
        with pytest.raises(NotFound):
            act("none")


def test_hostile_text_survives(ledger: Ledger) -> None:
    text = "a\0b\ud800 '; DROP TABLE feedback_items; --"
    item = ledger.give("call", "call_1", "comment", text, "team/\ud801").result()
    assert ledger.get(item.feedback_id).value == text
    assert list(ledger.list(source="team/\ud801")) == [item]
    assert list(ledger.list(principal="team")) == [item]

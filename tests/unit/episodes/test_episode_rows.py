"""Episodes and training rows, against ids that can be checked by eye."""

from __future__ import annotations

from typing import Any

import pytest
from conversation import call, said, user
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.episodes.rows import NO_CALL, settle_kinds, training_rows
from practicum.types.calls import ModelCall

A, B, C = [user("a")], [user("a"), said("x"), user("b")], [user("a"), said("x"), user("b"), said("y"), user("c")]


def three_turns(**last: Any) -> list[ModelCall]:
    return [
        call("c1", A, said("x"), prompt=(1, 2), ids=(1000, 1001), episode_id="ep"),
        call("c2", B, said("y"), prompt=(1, 2, 1000, 1001, 3), ids=(1002,), episode_id="ep", parent_call_id="c1"),
        call("c3", C, said("z"), prompt=(1, 2, 1000, 1001, 3, 1002, 4, 5), ids=(1003, 1004), episode_id="ep",
             parent_call_id="c2", **last),
    ]  # fmt: skip


def test_a_conversation_is_one_append_only_row() -> None:
    made = training_rows(three_turns())
    (row,) = made.rows
    assert row.prompt_ids == (1, 2)
    assert row.completion_ids == (1000, 1001, 3, 1002, 4, 5, 1003, 1004)
    assert row.mask == (True, True, False, True, False, False, True, True)
    assert row.logprobs == (-0.5, -0.5, None, -0.5, None, None, -0.5, -0.5)
    assert row.versions == (3, 3, None, 3, None, None, 3, 3)
    assert row.call_ids == ("c1", "c2", "c3") and made.refusals == {} and row.trained_tokens == 5


def test_e5_a_merged_row_is_longer_than_any_turn_was_allowed_to_be() -> None:
    (row,) = training_rows(three_turns(finish_reason="length")).rows
    assert row.trained_tokens == 5


def test_a_branch_trains_what_is_shared_once() -> None:
    asked = [*A, said("x"), user("B")]
    other = call("c4", asked, prompt=(1, 2, 1000, 1001, 7), ids=(1009,), episode_id="ep", parent_call_id="c1")
    calls = [*three_turns(), other]
    trunk, branch = training_rows(calls).rows
    assert trunk.trained_tokens == 5
    assert (branch.prompt_ids, branch.completion_ids) == ((1, 2, 1000, 1001, 7), (1009,))
    assert branch.episode_id != trunk.episode_id
    episode = training_rows(calls).episodes[1]
    assert (episode.forked_from, episode.fork_reason) == ("c1", "branched")


def test_ids_that_do_not_extend_the_parent_fork_instead_of_merging() -> None:
    calls = [*three_turns()[:1], call("c2", B, said("y"), prompt=(1, 2, 999, 3), ids=(1002,), parent_call_id="c1")]
    made = training_rows(calls)
    assert [row.trained_tokens for row in made.rows] == [2, 1]
    assert made.episodes[1].fork_reason == "ids_do_not_extend"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"status": "aborted", "error": "the caller disconnected"}, "aborted: the caller disconnected"),
        ({"kind": "auxiliary"}, "kind is auxiliary"),
        ({"ids": (), "logprobs": (), "versions": ()}, "no sampled token"),
        ({"logprobs": (-0.1, None)}, "no logprob"),
        ({"logprobs": (-0.1,)}, "2 ids, 1 logprobs"),
        ({"logprobs": (-0.1, -0.1, -0.1)}, "2 ids, 3 logprobs"),
        ({"versions": (3,)}, "1 versions"),
        ({"logprobs": (-9.0, -5.0), "sampled_logprobs": (0.0, 0.0)}, "no choice"),
    ],
)
def test_w3_w4_a_call_that_cannot_train_is_refused_with_its_reason(fields: dict[str, Any], words: str) -> None:
    made = training_rows([call("bad", A, said("x"), **fields)])
    assert made.rows == () and words in made.refusals["bad"]
    assert list(made.counts.values()) == [1]


def test_a_call_that_does_not_train_is_masked_inside_its_episode() -> None:
    calls = three_turns()
    calls[1] = call("c2", B, said("y"), prompt=calls[1].prompt_ids, ids=(1002,), kind="auxiliary", parent_call_id="c1")
    (row,) = training_rows(calls).rows
    assert row.mask == (True, True, False, False, False, False, True, True)
    assert row.call_ids == ("c1", "c3")


def test_l5_what_a_constraint_imposed_is_masked_and_what_it_only_narrowed_is_not() -> None:
    likely, unlikely = -0.1, -4.0
    one = call(
        "c1", A, said("x"), ids=(1000, 1001, 1002, 1003), logprobs=(unlikely, likely, unlikely, unlikely),
        sampled_logprobs=(0.0, 0.0, -0.7, unlikely), versions=(3,) * 4,
    )  # fmt: skip
    (row,) = training_rows([one]).rows
    assert one.imposed == (True, False, False, False)
    assert row.mask == (False, True, True, True)
    assert row.logprobs == (None, likely, unlikely, unlikely) and row.versions == (None, 3, 3, 3)


def test_e6_a_session_without_a_call_says_so() -> None:
    made = training_rows([])
    assert made.rows == () and made.counts == {NO_CALL: 1}


def test_e8_a_long_episode_keeps_its_beginning() -> None:
    made = training_rows(three_turns(), max_length=7)
    (row,) = made.rows
    assert row.prompt_ids + row.completion_ids == (1, 2, 1000, 1001, 3, 1002)
    assert row.call_ids == ("c1", "c2")
    assert "beyond the training length of 7" in made.refusals["c3"]


def test_e8_a_turn_may_be_cut_at_its_end() -> None:
    (row,) = training_rows(three_turns(), max_length=9).rows
    assert row.completion_ids[-1] == 1003 and row.mask[-1]


def test_e8_a_prompt_that_fills_the_length_leaves_no_row() -> None:
    made = training_rows(three_turns(), max_length=2)
    assert made.rows == () and set(made.refusals) == {"c1", "c2", "c3"}


def test_temperatures_are_not_mixed_in_a_row() -> None:
    cold, warm = training_rows(three_turns(temperature=0.5)).rows
    assert (cold.temperature, cold.trained_tokens) == (0.5, 2)
    assert (warm.temperature, warm.trained_tokens) == (1.0, 3)
    assert cold.prompt_ids[-1] == 5, "what other rows train is context here"
    assert cold.row_id != warm.row_id


def test_greedy_tokens_are_scored_at_temperature_one() -> None:
    (row,) = training_rows([call("c1", A, said("x"), temperature=0.0)]).rows
    assert row.temperature == 1.0


def test_w18_only_the_consumed_answer_trains() -> None:
    calls = [
        call("c1", A, said("x"), kind="agent", episode_id="e1"),
        call("c2", A, said("y"), kind="retry", episode_id="e2"),
        call("c3", [*A, said("y"), user("b")], said("z"), prompt=(1, 2, 1000, 1001, 3), parent_call_id="c2"),
    ]
    made = training_rows(calls)
    assert made.refusals == {"c1": "kind is retry: answer_not_used"}
    assert {name for row in made.rows for name in row.call_ids} == {"c2", "c3"}


def test_before_it_is_known_which_answer_was_consumed_the_first_one_trains() -> None:
    calls = [call("c1", A, said("x")), call("c2", A, said("y"), kind="best_of_n")]
    assert [one.kind for one in settle_kinds(calls)] == ["agent", "best_of_n"]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=8), st.data())
def test_every_sampled_token_is_trained_exactly_once_or_refused(
    shape: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    """Any tree of calls: each extends an earlier one or starts anew."""
    calls: list[ModelCall] = []
    for number, (tail, sampled, trains) in enumerate(shape):
        parent = data.draw(st.sampled_from([None, *calls]))
        before = parent.prompt_ids + parent.completion_ids if parent else (1,)
        ids = tuple(1000 + 10 * number + index for index in range(sampled))
        calls.append(
            call(f"c{number}", [user(str(number))], said("x"), prompt=before + (2,) * tail, ids=ids,
                 kind="agent" if trains else "auxiliary", episode_id=parent.episode_id if parent else f"ep{number}",
                 parent_call_id=parent.call_id if parent else None)
        )  # fmt: skip
    made = training_rows(calls)
    trained = [token for row in made.rows for token, own in zip(row.completion_ids, row.mask, strict=True) if own]
    expected = [token for one in calls if one.kind == "agent" for token in one.completion_ids]
    assert sorted(trained) == sorted(expected)
    in_rows = {name for row in made.rows for name in row.call_ids}
    assert in_rows | set(made.refusals) == {one.call_id for one in calls}
    assert not in_rows & set(made.refusals)
    assert len({row.row_id for row in made.rows}) == len(made.rows)
    for episode in made.episodes:
        assert episode.sampled_tokens == sum(span.stop - span.start for span in episode.spans if span.trains)

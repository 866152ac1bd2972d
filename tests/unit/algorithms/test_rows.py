"""Rows: weights sum to the trust, masked tokens weigh nothing, the teacher shares the student's completion exactly."""

import pytest

from practicum.algorithms.cloning import Cloning, Demonstration, emphasis, epoch_order
from practicum.algorithms.hindsight import Lesson, rows_of, loops, with_hindsight
from practicum.types.local import Completion
from practicum.types.messages import Message
from practicum.types.tokens import SamplingParams


def test_epochs_visit_every_row_once() -> None:
    seen = [index for step in range(5) for index in epoch_order(10, 2, step, seed=3)]
    assert sorted(seen) == list(range(10))
    assert seen != list(range(10))
    assert epoch_order(10, 2, 1, seed=3) == seen[2:4]


def test_a_batch_larger_than_the_data_takes_each_row_once() -> None:
    assert sorted(epoch_order(3, 8, 0, seed=0)) == [0, 1, 2]


def test_cloning_weights_sum_to_one() -> None:
    demos = [
        Demonstration(row_id=str(n), prompt_ids=(1,), answer_ids=(2,) * (n + 1), emphasis=(0.3,) * n + (1.0,))
        for n in range(4)
    ]
    (stream,) = Cloning(demos, batch=4, seed=0).batch(0).streams
    assert sum(sum(row.weights) for row in stream.rows) == pytest.approx(1.0)
    assert stream.loss == "cross_entropy"


def test_what_the_person_changed_counts_more_than_what_was_left() -> None:
    assert emphasis((1, 2, 3, 9, 8, 0), (1, 2, 3, 4, 0), 0.3) == (0.3, 0.3, 0.3, 1.0, 1.0, 0.3)
    assert emphasis((1, 2), (7,), 0.3) == (1.0, 1.0)


def test_rows_of_mask_the_first_tokens_and_keep_the_normaliser() -> None:
    completion = Completion(
        request_id="r", ids=(5, 6, 7, 8), logprobs=(-1.0, -1.0, -1.0, -1.0), version=-1, finish_reason="stop"
    )
    lesson = Lesson(
        row_id="a", prompt_ids=(1, 2), teacher_prompt_ids=(1, 9, 2), params=SamplingParams(), served=completion
    )
    (row,) = rows_of([lesson], [completion], skip_tokens=1)
    assert row.weights == (0.0, 0.25, 0.25, 0.25)
    assert row.completion_ids == completion.ids
    assert row.logprobs == completion.logprobs
    assert (row.prompt_ids, row.teacher_prompt_ids) == ((1, 2), (1, 9, 2))


def test_hindsight_goes_into_the_last_user_message_only() -> None:
    said = [
        Message(role="system", content="s"),
        Message(role="user", content="first"),
        Message(role="assistant", content="long"),
        Message(role="user", content="second"),
    ]
    told = with_hindsight(said, ["too long"], "answer")
    assert [m.content for m in told[:3]] == ["s", "first", "long"]
    assert "too long" in told[3].content and told[3].content.endswith("second")
    with pytest.raises(ValueError, match="no user message"):
        with_hindsight(said[:1], ["x"], "")


def test_loops() -> None:
    assert loops([1, 2, 3, 4] * 4)
    assert not loops(list(range(40)))
    assert not loops([])


def test_no_step_takes_a_row_twice_and_steps_of_an_epoch_are_alike() -> None:
    for n in (1, 5, 11, 16):
        steps = [epoch_order(n, 5, step, seed=1) for step in range(-(-n // 5))]
        assert sorted(index for picks in steps for index in picks) == list(range(n))
        assert max(map(len, steps)) - min(map(len, steps)) <= 1
        assert max(map(len, steps)) <= 5

"""Rows: weights sum to the trust, masked tokens weigh nothing, the teacher shares the student's completion exactly."""

from pathlib import Path

import pytest

from practicum.algorithms.cloning import Cloning, Correction, added_text
from practicum.algorithms.fresh import FreshAnswers
from practicum.algorithms.hindsight import Lesson, loops, rows_of, with_hindsight
from practicum.algorithms.order import epoch_order
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
    told = with_hindsight(said, ["too long"])
    assert [m.content for m in told[:3]] == ["s", "first", "long"]
    assert "too long" in told[3].content and told[3].content.endswith("second")
    with pytest.raises(ValueError, match="no user message"):
        with_hindsight(said[:1], ["x"])


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


class Says:
    """A local policy that answers from a list: what cloning makes of an answer is tested, not how it is sampled."""

    def __init__(self, *answers: Completion) -> None:
        self._answers = list(answers)
        self.asked = 0

    def generate(self, requests, *, progress=None):  # type: ignore[no-untyped-def]
        self.asked += 1
        return self._answers[: len(requests)]

    def score(self, requests, *, progress=None):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def answer(ids: tuple[int, ...], ended: bool = True) -> Completion:
    return Completion(
        request_id="r",
        ids=ids,
        logprobs=(-1.0,) * len(ids),
        version=-1,
        finish_reason="stop" if ended else "length",
    )


def correction(n: int, added: tuple[int, ...] | None) -> Correction:
    return Correction(
        row_id=str(n),
        prompt_ids=(1,),
        params=SamplingParams(),
        answer_ids=(30, 31, 40, 41, 0),
        emphasis=(0.5, 0.5, 1.0, 1.0, 1.0),
        added_ids=added,
    )


def cloned(
    policy: Says, folder: Path, *corrections: Correction, tries: int = 1
) -> dict[str, tuple[tuple[int, ...], tuple[float, ...]]]:
    fresh = FreshAnswers(
        policy=policy, student=-1, refresh=lambda: None, stop_ids=(0,), pool_file=folder / "pool.json", seed=0
    )
    streams = Cloning(corrections, fresh=fresh, batch=8, seed=0, tries=tries).batch(0).streams
    rows = [row for stream in streams for row in stream.rows]
    assert sum(sum(row.weights) for row in rows) == pytest.approx(1.0)
    for stream in streams:
        assert all((row.redirect is not None) == (stream.loss == "distill") for row in stream.rows)
    for row in rows:
        if row.redirect is not None:
            added = sum(row.written or ())
            assert row.written == (False,) * (len(row.completion_ids) - added) + (True,) * added
            assert row.redirect == ((0,), row.completion_ids[-added])
    return {row.row_id: (row.completion_ids, tuple(w / row.weights[-1] for w in row.weights)) for row in rows}


def test_what_was_written_behind_a_kept_beginning_goes_behind_the_present_answer(tmp_path: Path) -> None:
    drawn = [answer((9, 8, 0)), answer((9, 7, 7), ended=False), answer((6, 0)), answer((5, 5), ended=False)]
    rows = cloned(Says(*drawn), tmp_path, correction(0, (40, 0)), correction(1, (40, 0)), correction(2, None), tries=2)
    assert rows == {
        "0:0": ((9, 8, 40, 0), (1.0,) * 4),
        "1:0": ((6, 40, 0), (1.0,) * 3),
        "2:0": ((30, 31, 40, 41, 0), (0.5, 0.5, 1.0, 1.0, 1.0)),
    }


def test_every_present_answer_that_ended_is_a_row(tmp_path: Path) -> None:
    rows = cloned(Says(answer((9, 8, 0)), answer((6, 40, 0))), tmp_path, correction(0, (40, 0)), tries=2)
    assert {name: ids for name, (ids, _) in rows.items()} == {"0:0": (9, 8, 40, 0), "0:1": (6, 40, 0)}
    (tmp_path / "pool.json").unlink()
    nothing_else = Says(answer((40, 0)), answer((0,)), answer((6, 0)))
    rows = cloned(nothing_else, tmp_path, correction(0, (40, 0)), tries=3)
    assert [ids for ids, _ in rows.values()] == [(6, 40, 0)]
    (tmp_path / "pool.json").unlink()
    cut_off = Says(answer((9, 8), ended=False))
    rows = cloned(cut_off, tmp_path, correction(0, (40, 0)))  # the correction as it was written
    assert rows["0:0"][0] == (30, 31, 40, 41, 0)


def test_a_resumed_run_reads_the_answers_it_drew(tmp_path: Path) -> None:
    first, second = Says(answer((9, 8, 0))), Says()
    assert cloned(first, tmp_path, correction(0, (40, 0))) == cloned(second, tmp_path, correction(0, (40, 0)))
    assert (first.asked, second.asked) == (1, 0)


def test_what_counts_as_written_behind_a_kept_beginning() -> None:
    served = "It will come on Friday. We are sorry. And then"
    assert added_text("It will come on Friday. We are sorry.\n\n— The team", served) == "\n\n— The team"
    assert added_text("No, on Monday.", served) is None
    assert added_text("It will come on Friday.", served) is None  # shortened, nothing written

"""Advantages against hand-computed numbers; the served tokens keep the sampler's logprobs; R1 is what it guards."""

from dataclasses import replace

import pytest

from practicum.algorithms.polarity import Polarity, Verdict, advantages


def verdict(n: int, polarity: float) -> Verdict:
    return Verdict(
        row_id=str(n), prompt_ids=(1,), answer_ids=(2, 3), logprobs=(-0.5, -0.25), temperature=0.7, polarity=polarity
    )


def test_advantages_by_hand() -> None:
    assert advantages([1.0, -1.0, 0.5]) == pytest.approx([1.0, -1.05, 0.5 - (0.95 * 0.05 - 0.05)])


def test_l5_tokens_that_a_constraint_imposed_weigh_nothing() -> None:
    (stream,) = Polarity([replace(verdict(0, 1.0), imposed=(True, False))], batch=1, seed=0).batch(0).streams
    assert stream.rows[0].weights == (0.0, 0.5)


def test_r1_one_judged_answer_keeps_its_signal() -> None:
    assert advantages([1.0]) == [1.0]


def test_rows_weigh_by_tokens_and_keep_the_sampler_logprobs() -> None:
    batch = Polarity([verdict(0, 1.0), verdict(1, 1.0 - 0.95)], batch=8, seed=0).batch(0)
    (stream,) = batch.streams
    rows = {row.row_id: row for row in stream.rows}
    assert rows["0"].advantages == (1.0, 1.0)
    assert rows["0"].weights == (0.25, 0.25)
    assert rows["0"].logprobs == (-0.5, -0.25)
    assert rows["1"].weights == (0.0, 0.0)  # exactly at the baseline: no signal

"""Sampling one token: the distribution, truncation, both logprobs, and independence of the neighbours (L5)."""

import math

import pytest
import torch

from practicum.engines.embedded.draw import draw, uniform
from practicum.types.tokens import SamplingParams

PROBABILITIES = torch.tensor([0.05, 0.40, 0.0, 0.25, 0.10, 0.20])
LOGITS = PROBABILITIES.log()[None]


def _tokens(params, count=2000):
    grid = [(index + 0.5) / count for index in range(count)]
    return [one.token for one in draw(LOGITS.expand(count, -1), [params] * count, grid)]


def _shares(tokens):
    return [tokens.count(token) / len(tokens) for token in range(6)]


def test_frequencies_are_the_distribution():
    assert _shares(_tokens(SamplingParams())) == pytest.approx(PROBABILITIES.tolist(), abs=1e-3)


def test_temperature_reshapes_the_distribution_and_the_raw_logprob():
    expected = torch.softmax(LOGITS[0] / 0.5, -1)
    assert _shares(_tokens(SamplingParams(temperature=0.5))) == pytest.approx(expected.tolist(), abs=1e-3)
    one = draw(LOGITS, [SamplingParams(temperature=0.5)], [0.3])[0]
    assert one.logprob == pytest.approx(math.log(expected[one.token]), abs=1e-5)
    assert one.sampled_logprob == one.logprob


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), {1, 3}),
        (SamplingParams(top_k=100), {0, 1, 3, 4, 5}),
        (SamplingParams(top_p=0.39), {1}),
        (SamplingParams(top_p=0.41), {1, 3}),
        (SamplingParams(top_p=0.66), {1, 3, 5}),
        (SamplingParams(top_p=1e-9), {1}),
        # Top-p acts on what top-k left: .4/.65 is below .7, so both stay; at .6 the first alone reaches it.
        (SamplingParams(top_k=2, top_p=0.7), {1, 3}),
        (SamplingParams(top_k=2, top_p=0.6), {1}),
        # Min-p is a share of the largest, .4: at .3 of it .15 stays, at .6 only .25 does.
        (SamplingParams(min_p=0.3), {1, 3, 5}),
        (SamplingParams(min_p=0.6), {1, 3}),
        (SamplingParams(min_p=1.0), {1}),
        (SamplingParams(min_p=0.3, top_p=0.41), {1, 3}),
        (SamplingParams(min_p=0.3, top_k=1), {1}),
    ],
)
def test_truncation_keeps_the_right_set_and_renormalises(params, kept):
    tokens = _tokens(params)
    assert set(tokens) == kept
    mass = float(PROBABILITIES[sorted(kept)].sum())
    for token in kept:
        assert tokens.count(token) / len(tokens) == pytest.approx(float(PROBABILITIES[token]) / mass, abs=2e-3)
    one = draw(LOGITS, [params], [0.0])[0]
    assert one.logprob == pytest.approx(math.log(PROBABILITIES[one.token]), abs=1e-5)
    assert one.sampled_logprob == pytest.approx(one.logprob - math.log(mass), abs=1e-5)
    assert one.sampled_logprob <= 0


def test_a_flat_head_still_reaches_the_mass():
    flat = torch.zeros(1, 5000)
    params = SamplingParams(top_p=0.5)
    tokens = {draw(flat, [params], [index / 500])[0].token for index in range(500)}
    assert len(tokens) == 500
    assert draw(flat, [params], [0.5])[0].sampled_logprob == pytest.approx(math.log(1 / 2500), abs=1e-3)


def test_greedy_takes_the_best_at_temperature_one():
    for value in (0.0, 0.5, 0.999999):
        one = draw(LOGITS, [SamplingParams(temperature=0.0, top_p=0.1)], [value])[0]
        assert one.token == 1
        assert one.logprob == one.sampled_logprob == pytest.approx(math.log(0.4), abs=1e-5)


def test_the_extremes_never_give_an_impossible_token():
    certain = torch.tensor([[float("-inf"), 0.0, float("-inf")]])
    for value in (0.0, 1 - 2**-53):
        assert draw(certain, [SamplingParams()], [value])[0].token == 1
        assert PROBABILITIES[draw(LOGITS, [SamplingParams()], [value])[0].token] > 0


def test_a_row_that_is_not_finite_is_reported_and_leaves_the_others_alone():
    rows = torch.cat([LOGITS, torch.full((1, 6), float("nan")), torch.full((1, 6), float("-inf")), LOGITS])
    drawn = draw(rows, [SamplingParams()] * 4, [0.5] * 4)
    assert drawn[1] is None and drawn[2] is None
    assert drawn[0] == drawn[3] == draw(LOGITS, [SamplingParams()], [0.5])[0]


def test_rows_do_not_see_each_other():
    params = [SamplingParams(), SamplingParams(top_k=1), SamplingParams(temperature=0.0), SamplingParams(top_p=0.5)]
    values = [0.1, 0.9, 0.4, 0.7]
    together = draw(LOGITS.expand(4, -1), params, values)
    alone = [draw(LOGITS, [each], [value])[0] for each, value in zip(params, values, strict=True)]
    assert together == alone


def test_uniforms_come_from_seed_and_index_alone():
    values = [uniform(seed, index) for seed in range(50) for index in range(50)]
    assert len(set(values)) == 2500
    assert all(0 <= value < 1 for value in values)
    assert abs(sum(values) / len(values) - 0.5) < 0.02
    assert uniform(7, 3) == uniform(7, 3)

"""Intervals against hand-computed numbers."""

import math

import pytest

from practicum.evals.stats import paired_difference, proportion, sign_test


def test_wilson_interval_by_hand() -> None:
    # z = 1.959964, p = 8/10, n = 10: centre (p + z^2/2n)/(1 + z^2/n), half z sqrt(p(1-p)/n + z^2/4n^2)/(1 + z^2/n)
    z2 = 1.959964**2
    centre = (0.8 + z2 / 20) / (1 + z2 / 10)
    half = 1.959964 * math.sqrt(0.8 * 0.2 / 10 + z2 / 400) / (1 + z2 / 10)
    found = proportion(8, 10)
    assert (found.estimate, found.n) == (0.8, 10)
    assert found.low == pytest.approx(centre - half, abs=1e-6)
    assert found.high == pytest.approx(centre + half, abs=1e-6)


def test_nothing_measured_is_not_zero() -> None:
    assert (proportion(0, 0).low, proportion(0, 0).high) == (0.0, 1.0)
    empty = paired_difference([], [], [])
    assert math.isnan(empty.estimate) and empty.low == -math.inf


def test_paired_difference_weighs_items_and_resamples_sessions() -> None:
    # Session a: two items, +1 each; session b: one item, -1. Mean over items is 1/3; draws of sessions aa, ab, bb give
    # 1, 1/3, -1, so the interval spans them.
    found = paired_difference([1, 1, 0], [0, 0, 1], ["a", "a", "b"])
    assert found.estimate == pytest.approx(1 / 3)
    assert (found.low, found.high) == (-1.0, 1.0)


def test_paired_difference_narrows_with_independent_items() -> None:
    found = paired_difference([1.0] * 50 + [0.0] * 50, [0.0] * 100, range(100))
    assert 0.39 < found.low < 0.42 and 0.58 < found.high < 0.61


def test_unaligned_scores_are_an_error() -> None:
    with pytest.raises(ValueError):
        paired_difference([1.0], [1.0, 2.0], ["a", "b"])


def test_sign_test_by_hand() -> None:
    assert sign_test(5, 0) == pytest.approx(1 / 32)
    assert sign_test(3, 1) == pytest.approx((4 + 1) / 16)
    assert sign_test(0, 0) == 1.0

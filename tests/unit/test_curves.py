"""Learning curves of several seeds: what stands in `results/` is each seed's own figures, their mean and its error."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "recipes" / "curves.py"


@pytest.fixture(scope="module")
def curves() -> Any:
    spec = importlib.util.spec_from_file_location("curves", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(seed: int, before: float, after: float, minutes: float = 2.0) -> dict[str, Any]:
    return {
        "seed": seed,
        "state": "trained",
        "reason": "it ended",
        "measures": {"reward_before": before, "reward_after": after, "heldout_cases": 32},
        "rates": {},
        "work": {"rollouts": 8},
        "log": [{"step": 0, "reward": 0.25, "heldout_reward": before, "grad_norm": 9.0}, {"step": 1, "reward": 0.5}],
        "created_at": 100.0,
        "updated_at": 100.0 + 60 * minutes,
    }


def test_means_and_errors_are_over_seeds(curves: Any) -> None:
    found = curves._summary([report(0, 0.0, 0.5), report(1, 0.1, 0.9, 4.0), report(2, 0.2, 0.7)])
    assert found["heldout_before"]["mean"] == pytest.approx(0.1)
    after = found["heldout_after"]
    assert (after["mean"], after["least"], after["most"]) == pytest.approx((0.7, 0.5, 0.9))
    assert after["standard_error"] == pytest.approx(0.2 / math.sqrt(3))
    assert found["minutes"]["mean"] == pytest.approx(8 / 3) and found["seeds"] == 3
    assert [run["seed"] for run in found["runs"]] == [0, 1, 2]
    assert found["runs"][1]["heldout_after"] == 0.9
    assert found["runs"][0]["curve"] == [{"step": 0, "reward": 0.25, "heldout_reward": 0.0}, {"step": 1, "reward": 0.5}]


def test_one_seed_has_no_error_over_seeds(curves: Any) -> None:
    assert "standard_error" not in curves._summary([report(0, 0.0, 0.5)])["heldout_after"]


def test_a_run_that_stopped_itself_is_counted_and_in_no_mean(curves: Any) -> None:
    stopped = report(1, 0.0, 0.0) | {"state": "stopped", "measures": {}}
    found = curves._summary([report(0, 0.1, 0.5), stopped])
    assert (found["seeds"], found["stopped"], found["heldout_after"]["mean"]) == (2, 1, 0.5)
    assert found["runs"][1]["heldout_after"] is None
    assert curves._summary([stopped])["heldout_after"] == {}

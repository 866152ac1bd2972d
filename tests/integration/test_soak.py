"""The soak in small: one pass over every fault on order, none lost, none leaked, every rollout accounted for."""

from pathlib import Path

import pytest
from benchmarks.soak import GROUPS, soak


@pytest.mark.parametrize("staleness", [0, 1])
def test_every_fault_is_accounted_for(tmp_path: Path, staleness: int) -> None:
    figures = soak(tmp_path, steps=5, staleness=staleness)
    assert figures["faults"] == []
    assert figures["groups"] == 5 * GROUPS and figures["report"]["learned from"] > 10
    assert {"harness_failed", "grader_failed", "cancelled"} <= set(figures["report"])

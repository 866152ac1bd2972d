"""Two runs beside each other, from records alone.

Pins: only settings that differ are shown; the difference is paired over held-out tasks that both have; a run that has
not ended has what it got to.
"""

import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from practicum.dashboard.compare import compared, print_compared
from practicum.errors import NotFound
from practicum.types.runs import Run, RunStep


class Shelf:
    """Two runs on record."""

    def __init__(self, outputs: dict[str, dict[str, Any]]) -> None:
        self.outputs = outputs

    def runs(self) -> Sequence[Run]:
        rates = {"run_a": 1e-3, "run_b": 5e-4}
        return [
            Run(
                run_id=name,
                state="finished" if "evaluate" in found else "running",
                created_at=0.0,
                updated_at=0.0,
                config={"kind": "train", "train": {"learning_rate": rates[name], "steps": 2}},
            )
            for name, found in self.outputs.items()
        ]

    def run_steps(self, run_id: str) -> Sequence[RunStep]:
        return [
            RunStep(run_id=run_id, step=name, seq=at, output=output, at=0.0)
            for at, (name, output) in enumerate(self.outputs[run_id].items())
        ]


def trained(rewards: Sequence[float], after: dict[str, float]) -> dict[str, Any]:
    log = [
        {"step": step, "reward": reward, "sample_s": 2.0, "train_s": 1.0, "sampled_tokens": 100}
        for step, reward in enumerate(rewards)
    ]
    return {"train": {"log": log}, "evaluate": {"before": dict.fromkeys(after, 0.0), "after": after}}


TWO = {
    "run_a": trained([0.1, 0.2], {"t1": 0.0, "t2": 1.0, "t3": 0.0, "t4": 0.0}),
    "run_b": trained([0.1, 0.4, 0.6], {"t1": 1.0, "t2": 1.0, "t3": 0.0, "t5": 1.0}),
}


def test_settings_curves_and_the_paired_difference() -> None:
    found = compared(Shelf(TWO), "run_a", "run_b")
    assert found.settings == {"train.learning_rate": (1e-3, 5e-4)}
    one, two = found.sides
    assert (one.steps, one.wall_s, one.sampled_tokens) == (2, 6.0, 200.0)
    assert two.curve[2] == {"step": 2.0, "wall_s": 9.0, "reward": 0.6}
    assert one.after is not None and one.before is not None
    assert (one.before.estimate, one.after.estimate, one.after.n) == (0.0, 0.25, 4)
    assert found.difference is not None
    assert found.difference.n == 3 and found.difference.estimate == pytest.approx(1 / 3)
    out = io.StringIO()
    print_compared(found, Console(file=out, width=140))
    assert "train.learning_rate" in out.getvalue() and "0.600" in out.getvalue()


def test_a_run_that_has_not_ended_has_what_it_got_to() -> None:
    found = compared(Shelf({**TWO, "run_b": {}}), "run_a", "run_b")
    assert found.difference is None and found.sides[1].steps == 0 and found.sides[1].after is None
    print_compared(found, Console(file=io.StringIO()))


def test_an_unknown_run_is_named() -> None:
    with pytest.raises(NotFound, match="no run 'run_c'"):
        compared(Shelf(TWO), "run_a", "run_c")

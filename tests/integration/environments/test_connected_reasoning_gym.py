"""reasoning-gym end to end: a scripted policy, the gateway, the library's score, a training row."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.environments.connected import rolled_out, says

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")

from practicum.environments.reasoning_gym import from_exact_json, tasks


async def test_a_group_of_one_task_is_asked_and_scored(tmp_path: Path) -> None:
    (task,) = tasks("chain_sum", 1, max_tokens=32, num_samples=2)
    item = from_exact_json(task.options["task"]["item"])

    def answer(asked: str) -> str:
        assert asked == item["question"]
        return f"It is {item['answer']}"

    ended = await rolled_out(tmp_path, says(answer), task)
    wanted = len(item["answer"]) / len(f"It is {item['answer']}")
    assert [one.reward for one in ended] == [pytest.approx(wanted)] * 2, ended
    assert [len(one.rows) for one in ended] == [1, 1]
    assert all(one.excluded is None and any(one.rows[0].mask) for one in ended)

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.environments.ledger import Ledger, one_word

from practicum.environments import Environment, multi_turn, single_turn
from practicum.environments.tasks import where_it_stands
from practicum.errors import UsageError
from practicum.live.syllabus import load_syllabus

PLACE = "tests.integration.environments.ledger"


def test_a_single_turn_task_says_all_that_a_rollout_needs() -> None:
    task = single_turn(
        "t1", "Say one word.", one_word, data={"want": "lamp"}, max_tokens=16, temperature=0.7, stop=("\n",),
        more={"response_format": {"type": "json_object"}}, system="Be brief.", seed=4, num_samples=8,
        grader={"when_failed": 0.0},
    )  # fmt: skip
    assert (task.task_id, task.instructions, task.harness, task.num_samples) == (
        "t1", ("Say one word.",), "environment", 8,
    )  # fmt: skip
    assert task.options == {
        "environment": f"{PLACE}:one_word",
        "task": {"prompt": "Say one word.", "want": "lamp"},
        "sampling": {
            "max_tokens": 16, "temperature": 0.7, "stop": ["\n"], "response_format": {"type": "json_object"},
        },
        "system": "Be brief.",
        "seed": 4,
    }  # fmt: skip
    assert task.graders == {"environment": {"when_failed": 0.0}}


def test_a_multi_turn_task_names_its_class_and_is_labelled_by_what_it_is_about() -> None:
    task = multi_turn("l1", Ledger, {"rows": list(range(200))}, max_turns=3, max_tokens=64)
    assert task.options["environment"] == f"{PLACE}:Ledger"
    assert task.options["max_turns"] == 3
    assert task.instructions[0].startswith('Ledger {"rows": [0, 1') and len(task.instructions[0]) == 200


def test_what_another_process_cannot_load_is_refused() -> None:
    class Inside(Environment):
        pass

    for code in (lambda answer, task: 1.0, Inside, 3, print):
        with pytest.raises(UsageError):
            where_it_stands(code)


def test_data_that_is_no_json_is_refused() -> None:
    for data in ({"x": {1, 2}}, {"x": float("nan")}):
        with pytest.raises(UsageError, match="'t1' is no JSON"):
            single_turn("t1", "x", one_word, data=data)


def test_what_stands_in_a_file_of_tasks_is_named_by_that_file(tmp_path: Path) -> None:
    file = tmp_path / "my_tasks.py"
    file.write_text(
        "from practicum.environments import Environment, multi_turn, single_turn\n"
        "def right(answer, task): return 1.0\n"
        "class World(Environment):\n    pass\n"
        "TRAIN = [single_turn('a', 'x', right)]\nHELDOUT = [multi_turn('b', World, {})]\n"
    )
    syllabus = load_syllabus(file)
    places = [task.options["environment"] for task in (*syllabus.train, *syllabus.heldout)]
    assert places == [f"{file.resolve()}:right", f"{file.resolve()}:World"]

"""The connector to reasoning-gym against the library itself: the split, exact items, and its own scores."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")

import reasoning_gym

from practicum.environments.reasoning_gym import exact_json, from_exact_json, score, tasks
from practicum.errors import UsageError


def given(task):
    return task.options["task"]


def test_what_is_held_out_is_never_learned_from_whatever_the_seeds() -> None:
    split = {
        side: {
            given(task)["question"]
            for seed in (0, 1, 2)
            for task in tasks("chain_sum", 40, data_seed=seed, split=side, config={"max_terms": 2, "max_digits": 1})
        }
        for side in ("train", "heldout")
    }
    assert not split["train"] & split["heldout"]
    assert len(split["heldout"]) >= 40


def test_the_same_arguments_give_the_same_tasks_and_no_question_twice() -> None:
    one, two = (tasks("spell_backward", 20, data_seed=3, max_tokens=16) for _ in range(2))
    assert one == two
    assert len({given(task)["question"] for task in one}) == len({task.task_id for task in one}) == 20
    assert one[0].options["sampling"] == {"max_tokens": 16}
    assert one[:5] == tasks("spell_backward", 5, data_seed=3, max_tokens=16)


@pytest.mark.parametrize(
    "family", ["chain_sum", "prime_factorization", "countdown", "letter_jumble", "calendar_arithmetic"]
)
def test_a_task_scores_as_the_library_scores_the_item(family: str) -> None:
    (task,) = tasks(family, 1, data_seed=5)
    data = json.loads(json.dumps(given(task)))
    dataset = reasoning_gym.create_dataset(family, **data["config"])
    item = dataset[data["index"]]
    assert from_exact_json(data["item"]) == item
    for answer in (item["answer"], f"  {item['answer']}\n", f"It is {item['answer']}.", "7", "no"):
        try:
            wanted = dataset.score_answer(answer.strip(), item)
        except ValueError:
            assert family == "prime_factorization", "its scorer raises for what is no product"
            wanted = 0.0
        assert score(answer, data) == wanted, answer
    assert score(item["answer"], data) == 1.0


def test_an_item_that_json_cannot_hold_is_made_anew() -> None:
    (task,) = tasks("chain_sum", 1)
    data = given(task)
    assert score(from_exact_json(data["item"])["answer"], {**data, "item": None}) == 1.0
    with pytest.raises(ValueError, match="makes another item"):
        score("1", {**data, "item": None, "index": data["index"] + 1})


def test_a_scorer_that_fails_on_its_own_answer_is_no_zero() -> None:
    (task,) = tasks("prime_factorization", 1)
    data = given(task)
    item = from_exact_json(data["item"])
    assert score("no product", data) == 0.0
    broken = {**data, "item": exact_json({**item, "answer": "no product"})}
    with pytest.raises(ValueError):
        score("no product", broken)


def test_tags_are_read_by_the_librarys_own_rule() -> None:
    (task,) = tasks("chain_sum", 1, answer="tags")
    data = given(task)
    right = from_exact_json(data["item"])["answer"]
    assert "<answer>" in task.options["system"]
    assert score(f"I think <answer>{right}</answer>", data) == 1.0
    assert score(right, data) == 0.0


@pytest.mark.parametrize(
    "value", [{"a": (1, 2)}, {1: "x", (2, 3): [None, True, 1.5]}, [], {}, (), "s", {"tuple": [1]}, [({},)]]
)
def test_tuples_and_keys_come_back_as_they_were(value: object) -> None:
    back = from_exact_json(json.loads(json.dumps(exact_json(value))))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), b"x", {"a": {3}}])
def test_what_json_cannot_hold_is_none(value: object) -> None:
    assert exact_json(value) is None


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="no_such_family"):
        tasks("no_such_family", 1)
    with pytest.raises(UsageError, match="max_term"):
        tasks("chain_sum", 1, config={"max_term": 2})
    with pytest.raises(UsageError, match="different questions"):
        tasks("chain_sum", 500, config={"max_terms": 2, "min_digits": 1, "max_digits": 1})
    with pytest.raises(UsageError, match="question"):
        tasks("chain_sum", 1, prompt="Answer.")

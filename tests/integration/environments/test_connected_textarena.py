"""TextArena's own games end to end: a scripted policy, the gateway, the game's reward, a training row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.integration.environments.connected import rolled_out, says
from tests.integration.environments.opponents import first_free

pytest.importorskip("textarena", reason="TextArena is not installed")

from practicum.engines.scripted import Step, Turn
from practicum.environments.textarena import Game, tasks
from practicum.errors import UsageError


def halving(turn: Turn) -> Step:
    """Guess the number by halving, from what the game has said so far."""
    low, high, guess = 1, 20, 10
    for role, text in turn.messages:
        if role == "assistant":
            guess = int(re.search(r"\d+", text)[0])
        elif "is lower" in text:
            high = guess - 1
        elif "is higher" in text:
            low = guess + 1
    return Step(content=f"[{(low + high) // 2}]")


async def test_a_game_is_won_and_is_one_row(tmp_path: Path) -> None:
    (task,) = tasks("GuessTheNumber-v0", 1, game_seed=4, max_tokens=32)
    (one,) = await rolled_out(tmp_path, halving, task)
    assert one.rollout.cause == "finished", one.rollout.error
    assert one.reward == 1.0, one.rollout.outcomes
    assert len(one.rows) == 1 and len(one.rows[0].call_ids) > 1


async def test_invalid_moves_end_the_game_by_its_own_rule(tmp_path: Path) -> None:
    (task,) = tasks("GuessTheNumber-v0", 1, max_tokens=64)
    (one,) = await rolled_out(tmp_path, says("I do not know."), task)
    assert one.rollout.cause == "finished"
    assert one.reward == 0.0 and len(one.rows[0].call_ids) == 2, "one error is forgiven"


async def test_a_game_that_is_not_over_gives_what_the_task_says(tmp_path: Path) -> None:
    (task,) = tasks("GuessTheNumber-v0", 1, max_tokens=32, max_turns=1, unfinished=-0.5, game_seed=1)
    (one,) = await rolled_out(tmp_path, says("[1]"), task)
    assert {o.name: o.reward for o in one.rollout.outcomes} == {"reward": -0.5, "finished": 0.0}


@pytest.mark.parametrize("seat", [0, 1])
async def test_a_game_of_two_is_played_against_the_opponent(tmp_path: Path, seat: int) -> None:
    moves = {0: ["[4]", "[8]", "[6]", "[2]"], 1: ["[4]", "[3]", "[5]"]}[seat]

    def policy(turn: Turn) -> Step:
        return Step(content=moves[turn.assistant_turns])

    (task,) = tasks("TicTacToe-v0", 1, opponent=first_free, seat=seat, max_tokens=32)
    (one,) = await rolled_out(tmp_path, policy, task)
    assert one.rollout.cause == "finished", one.rollout.error
    assert one.reward in (1.0, -1.0)
    assert {o.name: o.reward for o in one.rollout.outcomes}["finished"] == 1.0


def test_all_rollouts_of_a_task_get_the_same_game() -> None:
    train, heldout = (tasks("2048-v0", 3, split=split) for split in ("train", "heldout"))
    seen = [Game().reset(task.options["task"]) for task in (*train, *train, *heldout)]
    assert seen[:3] == seen[3:6]
    assert not {task.options["task"]["seed"] for task in train} & {task.options["task"]["seed"] for task in heldout}


def test_what_is_new_is_told_once() -> None:
    (task,) = tasks("GuessTheNumber-v0", 1, game_seed=2)
    game = Game()
    first = game.reset(task.options["task"])
    second = game.reply("My guess is [1]") or ""
    assert "Guess The Number" in first and "Guess The Number" not in second and "My guess" not in second
    assert "higher" in second


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="no game 'Go-v0'"):
        tasks("Go-v0", 1)
    with pytest.raises(UsageError, match="does not start"):
        tasks("TicTacToe-v0", 1)  # a game of two, and no opponent

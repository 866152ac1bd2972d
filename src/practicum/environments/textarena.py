"""TextArena's games: a game for one player, or one against a fixed opponent.

    TRAIN = tasks("GuessTheNumber-v0", 32, max_tokens=32)

What the game says is what the policy reads: its prompt first, then each time what is new since the policy's last move.
The policy's text goes to the game through the wrappers that it is registered with for actions (the one that adds
brackets, say); those for observations repeat the whole game each turn, and a conversation has it already. The reward
is the game's own.

All rollouts of a task play with the same luck: random numbers start from the task's seed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Unpack

from practicum.environments.environment import Environment
from practicum.environments.loading import module, named
from practicum.environments.tasks import Settings, multi_turn, where_it_stands
from practicum.errors import MissingExtra, UsageError
from practicum.types.rollouts import Task

try:
    import textarena
except ImportError as error:
    raise MissingExtra(
        f"TextArena is not installed ({error}).", hint="Install it: pip install 'practicum[textarena]'"
    ) from error

Opponent = Callable[[str, random.Random], str]
_SPLITS = {"train": 0, "heldout": 1}


def tasks(
    game: str,
    size: int,
    *,
    game_seed: int = 0,
    split: Literal["train", "heldout"] = "train",
    opponent: Opponent | str | None = None,
    seat: int = 0,
    unfinished: float = -1.0,
    max_turns: int = 40,
    config: Mapping[str, Any] | None = None,
    **settings: Unpack[Settings],
) -> list[Task]:
    """`size` episodes of a game, which differ in the game's seed.

    Args:
        game: its id, as `textarena.make` takes it.
        size: how many.
        game_seed: where the games' seeds start.
        split: the two splits share no seed. In a game with few openings they may still share those.
        opponent: `(observation, rng) -> action`, at the top of a file or module, for a game of two; None for a game of
            one.
        seat: the policy's, 0 or 1.
        unfinished: the reward where the policy ran out of turns before the game was over. It is what most games give
            for an invalid move, so that stalling does not pay.
        max_turns: most model calls.
        config: the game's own settings, over those that it is registered with; JSON.
        settings: as `multi_turn` takes them.

    Raises: MissingExtra; UsageError for a game that there is not, or that does not start here, with its reason.
    """
    place = None if opponent is None else where_it_stands(opponent)
    given = {"game": game, "config": dict(config or {}), "seat": seat, "opponent": place, "unfinished": unfinished}
    _check(given)
    # An even seed is learned from, an odd one held out.
    seeds = [2 * (game_seed + index) + _SPLITS[split] for index in range(size)]
    return [multi_turn(f"{game}/{one}", Game, {**given, "seed": one}, max_turns=max_turns, **settings) for one in seeds]


def _check(task: Mapping[str, Any]) -> None:
    if task["game"] not in textarena.envs.registration.ENV_REGISTRY:
        raise UsageError(f"TextArena has no game {task['game']!r}.", param="game")
    state = random.getstate()
    try:
        Game().reset({**task, "seed": 0})
    except Exception as error:
        reason = re.sub(r"\s+", " ", str(error)).strip(" *")[:300]
        hint = "Some games need word lists: python -m nltk.downloader words" if isinstance(error, LookupError) else ""
        raise UsageError(
            f"The game {task['game']} does not start: {reason or type(error).__name__}", hint=hint
        ) from error
    finally:
        random.setstate(state)


class Game(Environment):
    """One game. Each answer of the policy is a move."""

    max_turns = 40

    def reset(self, task: Mapping[str, Any]) -> str:
        """Start the game; the opponent moves first where it is its turn."""
        self._task = task
        self._seat = int(task["seat"])
        self._opponent = _opponent(task["opponent"])
        self._luck = random.Random(task["seed"])
        random.seed(task["seed"])
        self._game = textarena.make(task["game"], **task["config"])
        self._bare = self._game
        while isinstance(self._bare, textarena.Wrapper):
            self._bare = self._bare.env
        self._game.reset(num_players=1 if self._opponent is None else 2, seed=task["seed"])
        return self._until_our_turn()

    def reply(self, text: str) -> str | None:
        """Make the policy's move, and those of the opponent that follow; None where the game is over."""
        over, _ = self._game.step(action=text)
        if over:
            return None
        seen = self._until_our_turn()
        return None if self.done else seen or "Your move."

    def verify(self) -> Mapping[str, float]:
        """The game's reward for the policy's seat, and whether the game was over."""
        if not self._bare.state.done:
            return {"reward": float(self._task["unfinished"]), "finished": 0.0}
        rewards, _ = self._game.close()
        return {"reward": float(rewards[self._seat]), "finished": 1.0}

    def _until_our_turn(self) -> str:
        while True:
            player, messages = self._bare.get_observation()
            seen = self._read(player, messages)
            if player == self._seat or self._opponent is None:
                return seen
            over, _ = self._game.step(action=self._opponent(seen, self._luck))
            if over:
                self.done = True
                return self._read(self._seat, self._bare.state.observations[self._seat])

    def _read(self, player: int, messages: list[tuple[int, str, Any]]) -> str:
        """What is new to a player. Its own moves are in its conversation already."""
        names = self._bare.state.role_mapping
        said = []
        for sender, message, _ in messages:
            if sender == textarena.GAME_ID:
                said.append(str(message))
            elif sender != player:
                said.append(f"[{names.get(sender, f'Player {sender}')}] {message}")
        return "\n".join(one.strip("\n") for one in said)


def _opponent(place: str | None) -> Opponent | None:
    if place is None:
        return None
    where, _, name = place.rpartition(":")
    found: Opponent = named(module({"file": where} if where.endswith(".py") else {"module": where}), name)
    return found

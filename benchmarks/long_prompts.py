"""Prompts of about a thousand tokens, for measuring what a shared prompt costs. The reward only has to differ."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from practicum.environments import single_turn

# fmt: off
_WORDS = [
    "harbor", "letter", "engine", "market", "garden", "window", "bridge", "winter", "doctor", "silver",
    "record", "train", "island", "button", "candle", "mirror", "valley", "ticket", "paper", "castle",
]
# fmt: on
MAX_TOKENS = 50


def prompt(number: int) -> str:
    """About nine hundred words of a list, and a question about it."""
    rng = random.Random(number)
    lines = [f"{line}. The {rng.choice(_WORDS)} is near the {rng.choice(_WORDS)}." for line in range(1, 91)]
    return "\n".join([*lines, "Describe this place in your own words."])


def reward(answer: str, task: Mapping[str, Any]) -> float:
    """Distinct words of fifty."""
    return len(set(answer.lower().split())) / 50


TRAIN = [single_turn(f"long {number}", prompt(number), reward, max_tokens=MAX_TOKENS) for number in range(8)]
HELDOUT = [single_turn(f"long {number}", prompt(number), reward, max_tokens=MAX_TOKENS) for number in range(100, 102)]

"""A format task: answer with a JSON object of one key, and nothing else.

The untrained model writes such an object about never, a fenced or talkative one now and then; so the reward pays a
little for what comes near. The answer's text is not judged: see the README for what that lets a policy get away with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from practicum.environments import single_turn

# fmt: off
TRAIN_THINGS = [
    "fruit", "river", "colour", "animal", "planet", "tool", "musical instrument", "country", "sport", "flower",
    "bird", "metal", "spice", "dance", "language", "month", "insect", "tree", "dessert", "vehicle",
    "vegetable", "ocean", "hobby", "profession", "board game", "fabric", "shape", "fish", "drink", "season",
    "mountain", "gemstone",
]
HELDOUT_THINGS = [
    "city", "herb", "reptile", "desert", "painter", "cheese", "lake", "piece of furniture", "weekday", "poet",
    "kitchen utensil", "holiday", "mammal", "soup", "number", "island", "school subject", "garment", "chemical element",
    "film genre", "nut", "bridge", "toy", "scientist", "constellation", "sauce", "weather condition", "shop",
    "currency", "berry", "dog breed", "building material",
]
# fmt: on
KEY = "answer"
MAX_TOKENS = 32


def prompt(thing: str) -> str:
    """What is asked."""
    return f'Name one {thing}. Reply with a JSON object that has the single key "{KEY}", and nothing else.'


def reward(answer: str, task: Mapping[str, Any]) -> float:
    """1 for the object alone, .5 with something around it, .1 for an opening brace."""
    if _is_wanted(answer.strip()):
        return 1.0
    start, end = answer.find("{"), answer.rfind("}")
    if start >= 0 and end > start and _is_wanted(answer[start : end + 1]):
        return 0.5
    return 0.1 if start >= 0 else 0.0


def _is_wanted(text: str) -> bool:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and list(found) == [KEY] and isinstance(found[KEY], str) and bool(found[KEY].strip())


TRAIN = [single_turn(f"train {thing}", prompt(thing), reward, max_tokens=MAX_TOKENS) for thing in TRAIN_THINGS]
HELDOUT = [single_turn(f"heldout {thing}", prompt(thing), reward, max_tokens=MAX_TOKENS) for thing in HELDOUT_THINGS]

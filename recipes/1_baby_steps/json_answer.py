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
    """1 for the object alone, .6 with something behind it, .3 with something before it, .1 for an opening brace."""
    text = answer.strip()
    start = text.find("{")
    if start < 0:
        return 0.0
    try:
        found, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return 0.1
    if not _is_wanted(found):
        return 0.1
    return 0.3 if start else 0.6 if text[end:] else 1.0


def _is_wanted(found: Any) -> bool:
    return isinstance(found, dict) and list(found) == [KEY] and isinstance(found[KEY], str) and bool(found[KEY].strip())


TRAIN = [single_turn(f"train {thing}", prompt(thing), reward, max_tokens=MAX_TOKENS) for thing in TRAIN_THINGS]
HELDOUT = [single_turn(f"heldout {thing}", prompt(thing), reward, max_tokens=MAX_TOKENS) for thing in HELDOUT_THINGS]

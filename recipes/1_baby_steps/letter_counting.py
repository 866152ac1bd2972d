"""How often a letter occurs in two or three words, from reasoning-gym and scored by it."""

from practicum.environments.reasoning_gym import tasks

_CONFIG = {"min_words": 2, "max_words": 3}

TRAIN = tasks("letter_counting", 64, config=_CONFIG, max_tokens=16)
HELDOUT = tasks("letter_counting", 32, split="heldout", config=_CONFIG, max_tokens=16)

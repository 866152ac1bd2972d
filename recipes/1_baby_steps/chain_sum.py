"""Sums of two one-digit numbers, from reasoning-gym and scored by it: 1 for the number alone, less for more text."""

from practicum.environments.reasoning_gym import tasks

_CONFIG = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}

TRAIN = tasks("chain_sum", 64, config=_CONFIG, max_tokens=16)
HELDOUT = tasks("chain_sum", 32, split="heldout", config=_CONFIG, max_tokens=16)

"""Whether two strings have the same pattern of letters, True or False, from reasoning-gym and scored by it."""

from practicum.environments.reasoning_gym import tasks

TRAIN = tasks("isomorphic_strings", 64, max_tokens=16)
HELDOUT = tasks("isomorphic_strings", 32, split="heldout", max_tokens=16)

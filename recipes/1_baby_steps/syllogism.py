"""Whether a conclusion follows from two statements, yes or no, from reasoning-gym and scored by it."""

from practicum.environments.reasoning_gym import tasks

TRAIN = tasks("syllogism", 64, max_tokens=16)
HELDOUT = tasks("syllogism", 32, split="heldout", max_tokens=16)

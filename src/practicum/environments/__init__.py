"""In-house worlds for a policy: single-turn tasks with a verifier, and multi-turn environments in plain Python.

What is named here is all that a team's file needs, and it imports little: it is loaded in a small process of its own.
"""

from practicum.environments.environment import Environment, Ran, Workspace
from practicum.environments.tasks import multi_turn, single_turn

__all__ = ["Environment", "Ran", "Workspace", "multi_turn", "single_turn"]

"""Tasks for the soak: an environment whose faults are on order. A task's `fault` says what goes wrong with it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from practicum.environments import Environment, multi_turn
from practicum.types.rollouts import Timeouts

# What goes wrong, by how much of the soak it is: in 20 tasks, so many of each.
SHARES = {
    "none": 11,
    "crash": 1,
    "verifier_hangs": 1,
    "verifier_raises": 1,
    "no_number": 1,
    "malformed": 1,
    "tool_raises": 1,
    "empty": 1,
    "all_equal": 1,
    "cancelled": 1,
}
# Where a prompt has such a word, the soak has the model write this: a call that cannot be read, and one that can.
SCRIPTS = {
    "xyzzy": '<tool_call>{"name": "look", "arguments": {"place": </tool_call>',
    "plugh": '<tool_call>{"name": "look", "arguments": {"place": "here"}}</tool_call>',
}
_WORDS = {"malformed": "xyzzy", "tool_raises": "plugh"}
# A group that is called off waits until it is.
_UNTIL_CALLED_OFF_S = 3600.0
TIMEOUTS = Timeouts(prepare_s=60.0, agent_s=_UNTIL_CALLED_OFF_S, grade_s=60.0, whole_s=_UNTIL_CALLED_OFF_S)


class Faulty(Environment):
    """One word is asked for; two turns at most."""

    max_turns = 2

    def reset(self, task: Mapping[str, Any]) -> str:
        self.fault = task["fault"]
        self.turns = 0
        if self.fault == "empty" and self.rng.random() < 0.5:
            raise RuntimeError("there is nothing to begin with")
        return f"Say something. {_WORDS.get(self.fault, '')}"

    def look(self, place: str) -> str:
        """What stands at a place."""
        raise LookupError(place)

    def reply(self, text: str) -> str | None:
        self.turns += 1
        if self.fault == "crash" and self.rng.random() < 0.5:
            os.kill(os.getpid(), 9)
        if self.fault == "cancelled":
            time.sleep(_UNTIL_CALLED_OFF_S)
        return "And more?" if self.turns < 2 else None

    def verify(self) -> Any:
        if self.fault == "verifier_hangs" and self.rng.random() < 0.5:
            time.sleep(3600)
        if self.fault == "verifier_raises" and self.rng.random() < 0.5:
            raise ValueError("the answer cannot be read")
        if self.fault == "no_number" and self.rng.random() < 0.5:
            return float("nan")
        if self.fault == "all_equal":
            return 1.0
        return len(set(self.answer)) / 16


def _task(number: int, split: str, fault: str) -> Any:
    return multi_turn(
        f"{split} {number} {fault}",
        Faulty,
        {"fault": fault},
        max_tokens=8,
        tool_timeout_s=_UNTIL_CALLED_OFF_S if fault == "cancelled" else 20.0,
        timeouts=TIMEOUTS,
        grader={"timeout_s": 0.5},
    )


_ORDER = [fault for fault, count in SHARES.items() for _ in range(count)]
TRAIN = [_task(number, "train", _ORDER[number]) for number in range(len(_ORDER))]
HELDOUT = [_task(number, "heldout", "none") for number in range(8)]

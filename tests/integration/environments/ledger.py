"""A team's file, as it would write it; some of it misbehaves when it is told to."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from practicum.environments import Environment

SEEN: list[str] = []


def one_word(answer: str, task: Mapping[str, Any]) -> float:
    return float(answer == task.get("want", "lamp"))


def says(answer: str, task: Mapping[str, Any]) -> Any:
    """Whatever the task wants a verifier to say; `raise` and `hang` are done."""
    if task["say"] == "raise":
        return 1 / 0
    if task["say"] == "hang":
        time.sleep(60)
    if task["say"] == "kill":
        os.kill(os.getpid(), 9)
    return eval(task["say"])


class Ledger(Environment):
    """Rows to add up."""

    max_turns = 4

    def reset(self, task: Mapping[str, Any]) -> str:
        if task.get("fail"):
            raise KeyError("rows")
        SEEN.append("reset")
        self.task = task
        self.rows = list(task["rows"])
        return "Add up the rows."

    def row(self, index: int) -> str:
        """The row at an index, from 0."""
        return str(self.rows[index])

    def hang(self, in_pieces: bool = True) -> str:
        """Never ends."""
        while in_pieces:
            time.sleep(0.01)
        while True:  # swallows what would interrupt it
            try:
                time.sleep(60)
            except BaseException:
                continue

    def die(self) -> str:
        """Kills the process, and leaves another one behind."""
        subprocess.Popen(["sleep", "3141"], start_new_session=True)
        os.kill(os.getpid(), 9)
        return ""

    def leave(self) -> str:
        """Leaves a daemon behind."""
        subprocess.Popen(["sleep", "3141"], start_new_session=True)
        return "left"

    def shell(self, command: str) -> str:
        """Run a command."""
        return self.sandbox.run(command).stdout

    def reply(self, text: str) -> str | None:
        return "Go on." if text == "more" else None

    def verify(self) -> Mapping[str, float]:
        right = str(sum(self.rows)) in self.answer
        return {"reward": float(right), "seen": float(len(SEEN)), "messages": float(len(self.messages))}

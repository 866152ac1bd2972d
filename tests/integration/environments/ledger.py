"""A team's file, as it would write it; some of it misbehaves when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.environments import Environment

SEEN: list[str] = []
LEFT = "3141.5926"  # seconds that what is left behind would sleep, by which it is found


def one_word(answer: str, task: Mapping[str, Any]) -> float:
    return float(answer == task.get("want", "lamp"))


def says(answer: str, task: Mapping[str, Any]) -> Any:
    """What the task wants a verifier to say; some words are done."""
    match task["say"]:
        case "raise":
            return 1 / 0
        case "hang":
            time.sleep(60)
        case "hang on":
            hang_on()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "alarm":  # works in a main thread alone, and falls silent elsewhere
            signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("mine")))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try:
                time.sleep(10)
            except TimeoutError:
                return 0.75
    return eval(task["say"])


def hang_on() -> None:
    """Swallows what would interrupt it."""
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


class Ledger(Environment):
    """Rows to add up."""

    max_turns = 4

    def reset(self, task: Mapping[str, Any]) -> str | Sequence[Mapping[str, Any]]:
        if task.get("fail"):
            raise KeyError("rows")
        SEEN.append("reset")
        self.rows = list(task["rows"])
        return task.get("first", "Add up the rows.")

    def row(self, index: int) -> str:
        """The row at an index, from 0."""
        return str(self.rows[index])

    def hang(self, on: bool = False) -> str:
        """Never ends."""
        if on:
            hang_on()
        while True:
            time.sleep(0.01)

    def die(self) -> str:
        """Kills the process, and leaves another one behind."""
        subprocess.Popen(["sleep", LEFT], start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    def leave(self) -> str:
        """Leaves a daemon behind."""
        subprocess.Popen(["sh", "-c", f"setsid sleep {LEFT} &"], start_new_session=True).wait()
        return "left"

    def shell(self, command: str) -> str:
        """Run a command."""
        done = self.sandbox.run(command)
        return f"{done.exit_code} {done.stdout}"

    def put(self, path: str, text: str) -> list[str]:
        """Write a file and list what there is."""
        self.sandbox.write(path, text)
        return [*self.sandbox.list_files(), self.sandbox.read(path)]

    def end(self) -> str:
        """End it."""
        self.done = True
        return "ended"

    def reply(self, text: str) -> str | None:
        if text == "count":
            return str(len(self.messages))
        if text == "stumble":
            raise RuntimeError("I fell")
        if text == "wait":
            hang_on()
        return None

    def verify(self) -> Mapping[str, float]:
        right = str(sum(self.rows)) in self.answer
        return {
            "seen": float(len(SEEN)),
            "reward": float(right),
            "messages": float(len(self.messages)),
            "truncated": float(self.truncated),
        }

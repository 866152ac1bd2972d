"""Small jobs in a shell, each with a check over the files that are left: what an intern is asked on the first day.

Four kinds, over names and words of their own for learning and for judging. A task's reward is printed by its check: 1
if the files are exactly what was asked for; else .1 where a command was run at all, so that a policy which never writes
a command learns that first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from practicum.types.rollouts import Task, Timeouts

# fmt: off
TRAIN_NAMES = ["notes", "list", "plan", "log", "draft", "memo", "todo", "report", "data", "names"]
TRAIN_WORDS = [
    "river", "stone", "cloud", "amber", "maple", "tiger", "lemon", "piano",
    "candle", "garden", "silver", "window", "rocket", "pepper", "marble", "anchor",
]
HELDOUT_NAMES = [
    "letters", "recipe", "budget", "agenda", "journal", "invoice", "summary", "archive", "groceries", "schedule",
]
HELDOUT_WORDS = [
    "ocean", "bridge", "copper", "violet", "falcon", "cherry", "violin", "basket",
    "forest", "button", "curtain", "planet", "sugar", "granite", "harbor",
]
# fmt: on
KINDS = ("write", "copy", "rename", "delete")

# The harness as it is installed; everything that is ours is its own configuration file.
ARGS = ["--agent-class=default", "--model-class=litellm_textbased", "-c", str(Path(__file__).with_name("mini.yaml"))]
# mini-swe-agent says here how its run ended; it writes the file anew after every step.
TRAJECTORY = "$HOME/.config/mini-swe-agent/last_mini_run.traj.json"


def _words(
    rng: random.Random, kind: str, names: Sequence[str], words: Sequence[str]
) -> tuple[str, dict[str, str], dict[str, str]]:
    """What is asked, the files before, and the files that are right after."""
    one, two = (f"{name}.txt" for name in rng.sample(names, 2))
    word, other = rng.sample(words, 2)
    if kind == "write":
        return f"Write the word {word} to the file {one}.", {}, {one: word}
    if kind == "copy":
        return f"Copy the file {one} to {two}.", {one: word}, {one: word, two: word}
    if kind == "rename":
        return f"Rename the file {one} to {two}.", {one: word}, {two: word}
    return f"Delete the file {one}.", {one: word, two: other}, {two: other}


def _check(after: dict[str, str]) -> str:
    """A shell script that prints the reward. The files are compared as they are, a last line break aside."""
    listed = " ".join(sorted(after))
    wanted = [f'[ "$(ls -A | sort | tr "\\n" " ")" = "{listed} " ]']
    wanted += [f'[ "$(cat {name})" = "{word}" ]' for name, word in after.items()]
    return (
        f"if {' && '.join(wanted)}; then echo 1\n"
        f'elif grep -q \'"exit_status": "RepeatedFormatError"\' "{TRAJECTORY}"; then echo 0\n'
        "else echo 0.1; fi\n"
    )


def _task(kind: str, index: int, split: str) -> Task:
    names, words = (TRAIN_NAMES, TRAIN_WORDS) if split == "train" else (HELDOUT_NAMES, HELDOUT_WORDS)
    asked, before, after = _words(random.Random(f"{split}:{kind}:{index}"), kind, names, words)
    return Task(
        task_id=f"{split}-{kind}-{index}",
        instructions=(asked,),
        harness="mini-swe-agent",
        options={"args": ARGS},
        files={name: word + "\n" for name, word in before.items()},
        graders={"exit_status": {"script": _check(after), "reward": "printed"}},
        timeouts=Timeouts(agent_s=120.0, whole_s=1200.0),
    )


TRAIN = [_task(kind, index, "train") for index in range(32) for kind in KINDS]
HELDOUT = [_task(kind, index, "heldout") for index in range(12) for kind in KINDS]

"""Files and a shell: small jobs in the rollout's sandbox, each with exactly one right outcome.

    TRAIN = jobs("train", 128)
    HELDOUT = jobs("heldout", 48)

Four kinds need one step, three a look first: a file names another file, or one of several holds a word. Names and words
for learning and for judging are disjoint. There are two forms. In the form `tools` the policy calls `run`, `read_file`,
`write_file` and `list_files`. In the form `command` its whole answer is a command, for a policy that cannot write tool
calls yet; what the command prints is what it hears next.

A job's reward is 1 if the files are what was asked for, to the byte but for a last line break. Else it is .3 where what
had to be looked up was seen, and .1 where anything was done that worked, so that a policy which never writes a command
learns that first.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

from practicum.environments.environment import Environment, Ran
from practicum.environments.tasks import Settings, multi_turn
from practicum.types.rollouts import Task

Split = Literal["train", "heldout"]
Form = Literal["command", "tools"]

LOOKED, TRIED = 0.3, 0.1
_COMMAND_S = 10.0
_SHOWN_CHARS = 400
_FENCED = re.compile(r"```(?:[a-z]+)?[ \t]*\n(.*?)\n?```", re.DOTALL)
# fmt: off
_NAMES: Mapping[Split, Sequence[str]] = {
    "train": ("notes", "list", "plan", "log", "draft", "memo", "todo", "report", "data", "names", "book", "page"),
    "heldout": (
        "letters", "recipe", "budget", "agenda", "journal", "invoice", "summary", "archive", "menu", "schedule",
    ),
}
_WORDS: Mapping[Split, Sequence[str]] = {
    "train": (
        "river", "stone", "cloud", "amber", "maple", "tiger", "lemon", "piano", "candle", "garden", "silver", "window",
        "rocket", "pepper", "marble", "anchor",
    ),
    "heldout": (
        "ocean", "bridge", "copper", "violet", "falcon", "cherry", "violin", "basket", "forest", "button", "curtain",
        "planet", "sugar", "granite", "harbor",
    ),
}
# fmt: on


class _Job(Environment):
    """A job: `ask` is what is asked, `after` the files that are right, by path, `look` what must be seen first."""

    def reset(self, task: Mapping[str, Any]) -> Any:
        self._after: Mapping[str, str] = task["after"]
        self._look: str = task.get("look", "")
        self._done_well = 0
        self._looked = False
        return task["ask"]

    def verify(self) -> dict[str, float]:
        """1 for exactly the right files, else something for the way there; and how far it came."""
        paths = self.sandbox.list_files()
        right = sorted(self._after) == paths and all(
            self.sandbox.read(path).rstrip("\n") == self._after[path] for path in paths
        )
        reward = 1.0 if right else LOOKED if self._looked else TRIED if self._done_well else 0.0
        return {"reward": reward, "right": float(right), "tried": float(self._done_well > 0)}

    def _run(self, command: str) -> str:
        ran = self.sandbox.run(command, timeout_s=_COMMAND_S)
        return self._saw(_shown(ran), well=ran.exit_code == 0)

    def _saw(self, text: str, *, well: bool) -> str:
        self._done_well += well
        self._looked = self._looked or (bool(self._look) and self._look in text)
        return text


class Terminal(_Job):
    """Answers are commands. The conversation begins with examples, of names that no job has."""

    system = "You work at a shell. Answer with one command and nothing else."

    def reset(self, task: Mapping[str, Any]) -> list[dict[str, str]]:
        """The examples, then the job."""
        said = [text for example in _EXAMPLES for text in example] + [super().reset(task)]
        return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]

    def reply(self, text: str) -> str | None:
        """What the command printed."""
        command = command_in(text)
        if command is None:
            return self.system
        return None if command in ("exit", "done") else self._run(command)


_EXAMPLES = (
    ("Write the word moon to the file sky.txt.", "echo moon > sky.txt"),
    ("Read the file way.txt and delete the file that it names.", "cat way.txt", "sea.txt", "rm sea.txt"),
    ("Copy the file sky.txt to night.txt.", "cp sky.txt night.txt"),
    ("Find the file that holds the word moon and delete it.", "grep -l moon *", "sky.txt", "rm sky.txt"),
    ("Rename the file night.txt to day.txt.", "mv night.txt day.txt"),
    (
        "Read the file way.txt and copy the file that it names to end.txt.",
        "cat way.txt",
        "sun.txt",
        "cp sun.txt end.txt",
    ),
    ("Delete the file day.txt.", "rm day.txt"),
)


class Shell(_Job):
    """A shell and files as tools."""

    system = "You work at a shell. Do each task with the tools; say `done` when it is done."

    def run(self, command: str) -> str:
        """Run a shell command and give what it prints."""
        return self._run(command)

    def list_files(self) -> str:
        """The names of all files."""
        return self._saw("\n".join(self.sandbox.list_files()) or "(no files)", well=True)

    def read_file(self, path: str) -> str:
        """The text of a file."""
        return self._saw(_cut(self.sandbox.read(path, most_bytes=4 * _SHOWN_CHARS)), well=True)

    def write_file(self, path: str, text: str) -> str:
        """Write a file, replacing what it held."""
        self.sandbox.write(path, text)
        return self._saw(f"{path} has {len(text)} characters.", well=True)


def command_in(text: str) -> str | None:
    """The command of an answer: its one code block, or its one line. None where it is neither."""
    blocks = _FENCED.findall(text)
    if len(blocks) == 1:
        return blocks[0].strip() or None
    line = text.strip().removeprefix("$ ").strip("`").strip()
    return line if line and "\n" not in line and not blocks else None


def jobs(
    split: Split,
    count: int,
    *,
    kinds: Sequence[str] = (),
    form: Form = "command",
    edition: int = 0,
    spare_turns: int = 0,
    **settings: Unpack[Settings],
) -> list[Task]:
    """So many jobs, the kinds taking turns.

    Args:
        split: whose names and words they are of.
        count: how many.
        kinds: which of `KINDS`; all of them by default.
        form: how the policy acts.
        edition: another one gives other jobs of the same split.
        spare_turns: model calls beyond those that a job needs.
        settings: as of `multi_turn`; 32 tokens for a command and 96 for a tool call by default.
    """
    chosen = tuple(kinds) or tuple(KINDS)
    unknown = [kind for kind in chosen if kind not in KINDS]
    if unknown:
        raise ValueError(f"There are no jobs {unknown}; there are {list(KINDS)}.")
    made = []
    for index in range(count):
        kind = chosen[index % len(chosen)]
        rng = random.Random(f"{edition}:{split}:{kind}:{index}")
        names = [f"{name}.txt" for name in rng.sample(_NAMES[split], 4)]
        job = KINDS[kind](names, rng.sample(_WORDS[split], 4))
        given = settings.copy()
        given.setdefault("max_tokens", 32 if form == "command" else 96)
        given["files"] = {path: text + "\n" for path, text in job.before.items()}
        made.append(
            multi_turn(
                f"{split}-{form}-{kind}-{edition}-{index}",
                Terminal if form == "command" else Shell,
                {"ask": job.ask, "after": job.after, "look": job.look},
                max_turns=1 + bool(job.look) + (form == "tools") + spare_turns,
                **given,
            )
        )
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A job's words: what is asked, the files before and after, and what must be seen first in a job of two steps."""

    ask: str
    before: dict[str, str]
    after: dict[str, str]
    look: str = ""


_Words = Sequence[str]


def _write(names: _Words, words: _Words) -> _Made:
    ask = f"Write the word {words[0]} to the file {names[0]}."
    return _Made(ask=ask, before={}, after={names[0]: words[0]})


def _copy(names: _Words, words: _Words) -> _Made:
    before = {names[0]: words[0]}
    return _Made(ask=f"Copy the file {names[0]} to {names[1]}.", before=before, after={**before, names[1]: words[0]})


def _rename(names: _Words, words: _Words) -> _Made:
    ask = f"Rename the file {names[0]} to {names[1]}."
    return _Made(ask=ask, before={names[0]: words[0]}, after={names[1]: words[0]})


def _delete(names: _Words, words: _Words) -> _Made:
    kept = {names[1]: words[1]}
    return _Made(ask=f"Delete the file {names[0]}.", before={names[0]: words[0], **kept}, after=kept)


def _follow_delete(names: _Words, words: _Words) -> _Made:
    kept = {names[0]: names[1], names[2]: words[2]}
    ask = f"Read the file {names[0]} and delete the file that it names."
    return _Made(ask=ask, before={**kept, names[1]: words[1]}, after=kept, look=names[1])


def _follow_copy(names: _Words, words: _Words) -> _Made:
    before = {names[0]: names[1], names[1]: words[1], names[2]: words[2]}
    ask = f"Read the file {names[0]} and copy the file that it names to {names[3]}."
    return _Made(ask=ask, before=before, after={**before, names[3]: words[1]}, look=names[1])


def _find(names: _Words, words: _Words) -> _Made:
    kept = {names[1]: words[1], names[2]: words[2]}
    ask = f"Find the file that holds the word {words[0]} and delete it."
    return _Made(ask=ask, before={**kept, names[0]: words[0]}, after=kept, look=names[0])


KINDS: Mapping[str, Callable[[_Words, _Words], _Made]] = {
    "write": _write,
    "follow-delete": _follow_delete,
    "copy": _copy,
    "find": _find,
    "rename": _rename,
    "follow-copy": _follow_copy,
    "delete": _delete,
}


def _shown(ran: Ran) -> str:
    """What a command printed, and how it ended where not well."""
    text = _cut("\n".join(filter(None, (ran.stdout.strip(), ran.stderr.strip()))))
    if ran.timed_out:
        return f"{text}\n(it took longer than {_COMMAND_S:g} s)".strip()
    if ran.exit_code:
        return f"{text}\n(exit status {ran.exit_code})".strip()
    return text or "(no output)"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"

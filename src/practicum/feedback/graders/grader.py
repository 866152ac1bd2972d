"""What every grader shares: what it may look at, how it says what it found, and how it says that it could not tell.

Invariant: a grader that fails (it crashed, hung, printed no number, printed NaN) gives an outcome without a reward and
with a reason. It never gives a zero: zero is a judgement of the policy, and a failure says nothing about that. Where
the policy itself can make a check fail, whoever writes the task says what that is worth (`when_failed`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from practicum.errors import NotFound, UsageError
from practicum.harnesses.options import read_options
from practicum.sandboxes.sandbox import Exited, Sandbox
from practicum.types.calls import ModelCall
from practicum.types.outcomes import Outcome, finite

MAIN = "reward"
_MOST_FILES_BYTES = 20_000_000


class Evidence(Protocol):
    """A rollout after its harness has ended: the sandbox as it was left, how the harness ended, and its calls."""

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox's final state. Nothing runs in it any more."""

    @property
    def exit_code(self) -> int | None:
        """The harness's exit status; None where there is none."""

    @property
    def output(self) -> str:
        """What the harness gave as its answer."""

    @property
    def calls(self) -> Sequence[ModelCall]:
        """The model calls on record, oldest first."""


class Grader(Protocol):
    """Judges one rollout."""

    async def grade(self, evidence: Evidence) -> Sequence[Outcome]:
        """One outcome or more, the main one first."""


class Options(BaseModel):
    """What a task may say to a grader. `when_failed` is the reward where the grader fails; None is no reward."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    when_failed: float | None = Field(default=None, allow_inf_nan=False)


O = TypeVar("O", bound=Options)  # noqa: E741


def options(kind: type[O], given: Mapping[str, Any], grader: str) -> O:
    """A task's options for a grader. Raises UsageError naming the option at fault."""
    return read_options(kind, given, f"The option {{option}} of the grader {grader}")


class Failed(Exception):
    """The grader could not tell, and why."""


def could_not_tell(by: str, asked: Options, reason: str) -> list[Outcome]:
    """The outcome of a grader that failed."""
    return [Outcome(name=MAIN, reward=asked.when_failed, reason=f"the grader failed: {reason}", by=by)]


def outcomes(rewards: Mapping[str, float], by: str, main: str = MAIN) -> list[Outcome]:
    """Named rewards as outcomes, the main one first. Raises Failed where it is not among them."""
    if main not in rewards:
        if len(rewards) != 1:
            raise Failed(f"there is no reward named {main!r} among {sorted(rewards)}")
        main = next(iter(rewards))
    names = [main, *(name for name in rewards if name != main)]
    return [Outcome(name=name, reward=rewards[name], by=by) for name in names]


def parse_rewards(text: str) -> dict[str, float]:
    """A number, or a JSON object of numbers by name. Raises Failed for anything else: NaN, `true`, "good job"."""
    try:
        found = json.loads(text, parse_constant=float)
    except (ValueError, RecursionError):
        try:
            found = float(text)
        except ValueError:
            raise Failed(f"{text.strip()[:200]!r} is no reward: a number, or a JSON object of numbers") from None
    if not isinstance(found, dict):
        return {MAIN: number(MAIN, found)}
    if not found:
        raise Failed("the object of rewards is empty")
    return {name: number(name, value) for name, value in found.items()}


def number(name: str, value: Any) -> float:
    """A finite number. Raises Failed."""
    try:
        return finite(name, value)
    except ValueError as error:
        raise Failed(str(error)) from None


def ended_well(done: Exited, timeout_s: float) -> int:
    """The exit status of a check that came to an end by itself. Raises Failed for any other."""
    tail = (done.stderr.strip() or done.stdout.strip())[-300:]
    if done.timed_out or done.exit_code is None:
        raise Failed(f"it took longer than {timeout_s:g} s: {tail}")
    if done.over is not None:
        raise Failed(f"it used more than the limit of {done.over}: {tail}")
    return done.exit_code


async def final_files(sandbox: Sandbox, patterns: Sequence[str], most_bytes: int) -> dict[str, str]:
    """The texts of the files that match one of `patterns`, each up to `most_bytes`, 20 MB in all."""
    found: dict[str, str] = {}
    left = _MOST_FILES_BYTES
    for path in await sandbox.list_files():
        if left > 0 and any(fnmatch(path, pattern) for pattern in patterns):
            try:
                found[path] = await sandbox.read(path, most_bytes=min(most_bytes, left))
            except (NotFound, UsageError):  # what was listed is a link or gone by now
                continue
            left -= len(found[path])
    return found

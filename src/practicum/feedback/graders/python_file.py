"""A team's own Python functions over what a rollout left: the same file, with a table `GRADERS`, that judges held-out
answers. It runs in a process of its own that can be killed, so a function that hangs or crashes is a failure of the
grader and of nothing else (case L16).

A function gets one object: `files` (text by path), `output` and `exit_code` of the harness, `calls` (dictionaries),
and, as for a held-out answer, `text` (the output), `question` and `finish_reason`. It returns True or False, a number,
a dictionary of named numbers, or None where it does not apply.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from practicum.feedback.graders.grader import (
    Evidence,
    Failed,
    Options,
    could_not_tell,
    ended_well,
    final_files,
    number,
    options,
)
from practicum.sandboxes.process import Job, run_kept
from practicum.sandboxes.sandbox import Limits
from practicum.types.calls import ModelCall
from practicum.types.outcomes import Outcome

NAME = "python"
_CHILD = Path(__file__).with_name("python_child.py")
_TOLD = ("call_id", "kind", "status", "created_at", "finished_at", "policy_version", "dialect", "request", "text")


class PythonOptions(Options):
    """`path` is the file, below the folder of graders. `graders` names those of its table to ask, in order, all if
    empty; the first one's verdict is the main reward. `files` are patterns of the final files to hand over."""

    path: str
    graders: list[str] = Field(default_factory=list)
    files: list[str] = Field(default_factory=lambda: ["*"])
    timeout_s: float = Field(default=240.0, gt=0)
    most_bytes: int = Field(default=1_000_000, gt=0)
    memory_bytes: int | None = None


class PythonGrader:
    """Asks the functions of a team's file. Raises UsageError for wrong options."""

    def __init__(self, given: Mapping[str, Any], within: Path) -> None:
        self._options = options(PythonOptions, given, NAME)
        self._file = within / self._options.path

    async def grade(self, evidence: Evidence) -> Sequence[Outcome]:
        """One outcome for each function, in order; a dictionary gives `NAME/KEY` for each of its keys."""
        asked = self._options
        try:
            verdicts = await self._ask(evidence)
        except Failed as error:
            return could_not_tell(NAME, asked, str(error))
        found = [outcome for name, verdict in verdicts.items() for outcome in _outcomes(name, verdict, asked)]
        return found or could_not_tell(NAME, asked, "none of its functions applies")

    async def _ask(self, evidence: Evidence) -> dict[str, Any]:
        asked = self._options
        final = {
            "files": await final_files(evidence.sandbox, asked.files, asked.most_bytes),
            "output": evidence.output,
            "exit_code": evidence.exit_code,
            "calls": [{name: getattr(call, name) for name in (*_TOLD, "finish_reason")} for call in evidence.calls],
            "text": evidence.output,
            "question": _question(evidence.calls),
            "finish_reason": evidence.calls[-1].finish_reason if evidence.calls else None,
        }
        job = Job(
            command=[sys.executable, "-P", str(_CHILD)],
            env=dict(os.environ),
            cwd=str(self._file.parent),
            stdin=json.dumps({"path": str(self._file), "graders": asked.graders, "final": final}),
            limits=Limits(memory_bytes=asked.memory_bytes),
        )
        done = await run_kept(job, timeout_s=asked.timeout_s)
        status = ended_well(done, asked.timeout_s)
        if status != 0:
            raise Failed(f"its process ended with status {status}: {done.stderr.strip()[-300:]}")
        try:
            said = json.loads(done.stdout)
        except ValueError:
            raise Failed(f"its process said nothing that can be read: {done.stderr.strip()[-300:]}") from None
        if "error" in said:
            raise Failed(said["error"])
        verdicts: dict[str, Any] = said["verdicts"]
        return verdicts


def _outcomes(name: str, verdict: Mapping[str, Any], asked: PythonOptions) -> list[Outcome]:
    """`verdict` is `{"error": text}` or `{"value": what the function returned}`."""
    try:
        if "error" in verdict:
            raise Failed(verdict["error"])
        value = verdict["value"]
        if value is None:
            return []
        if not isinstance(value, dict):
            return [Outcome(name=name, reward=_reward(name, value), by=NAME)]
        if not value:
            raise Failed("it returned an empty dictionary")
        return [Outcome(name=f"{name}/{key}", reward=_reward(key, one), by=NAME) for key, one in value.items()]
    except Failed as error:
        return [Outcome(name=name, reward=asked.when_failed, reason=f"the grader failed: {error}", by=NAME)]


def _reward(name: str, value: Any) -> float:
    return float(value) if isinstance(value, bool) else number(name, value)


def _question(calls: Sequence[ModelCall]) -> str:
    """The last message of a user's in the last request, where it is plain text; each dialect writes it in its way."""
    for call in reversed(calls):
        messages = call.request.get("messages") or call.request.get("input") or []
        if isinstance(messages, str):
            return messages
        for message in reversed(messages):
            if isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str):
                return str(message["content"])
    return ""

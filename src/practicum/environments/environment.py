"""The base of a team's own environment: a world in plain Python that a policy talks to.

    class Ledger(Environment):
        max_turns = 8

        def reset(self, task):
            self.rows = list(task["rows"])
            return "Add up the rows."

        def row(self, index: int) -> str:
            \"\"\"The row at an index, from 0.\"\"\"
            return str(self.rows[index])

        def verify(self):
            return float(str(sum(self.rows)) in self.answer)

Every public method with a docstring is a tool. One object serves one rollout, in a process of its own that is thrown
away afterwards, so whatever it keeps or breaks it keeps and breaks for itself.

This module is loaded in that process: it imports the standard library alone until a tool's schema is asked for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command in the sandbox ended. `exit_code` is None where `timed_out`, and 128 + N after signal N."""

    exit_code: int | None
    stdout: str
    stderr: str
    timed_out: bool = False


class Workspace(Protocol):
    """The rollout's sandbox, as an environment sees it. It is made when it is first used.

    Paths are relative to its working folder. One that leads outside raises ValueError.
    """

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Ran:
        """Run a command to its end; a string is run by the shell. It gets as long as the tool that runs it, at most.

        Raises: OSError where it could not be started.
        """

    def read(self, path: str, *, most_bytes: int = 1_000_000) -> str:
        """A file's text. Raises FileNotFoundError."""

    def write(self, path: str, text: str, *, executable: bool = False) -> None:
        """Write a file, folders included, replacing what is there."""

    def list_files(self) -> list[str]:
        """Paths of all regular files in the working folder, sorted."""


class Environment:
    """What a team derives from. All methods are synchronous; each call has a time limit.

    Class attributes: `max_turns` bounds the model calls of a rollout; `system` is the system message, unless the task
    has one. Set before `reset`: `sandbox`, and `rng` from the rollout's seed. As it goes on: `messages` is the
    transcript in OpenAI's form, `answer` the text of the last assistant message, `truncated` whether that hit its token
    limit. An environment ends the episode by setting `done`.
    """

    max_turns: int = 16
    system: str | None = None

    sandbox: Workspace
    rng: random.Random
    messages: list[dict[str, Any]]
    answer: str = ""
    truncated: bool = False
    done: bool = False

    def reset(self, task: Mapping[str, Any]) -> str | Sequence[Mapping[str, Any]]:
        """Set the world up and give the first user message, or chat messages."""
        raise NotImplementedError(f"{type(self).__name__} has no `reset`")

    def reply(self, text: str) -> str | None:
        """What the world says to an answer without tool calls. None, the default, ends the episode."""
        return None

    def verify(self) -> float | Mapping[str, float]:
        """What the final state is worth: a number, or named numbers of which `reward` is the main one."""
        raise NotImplementedError(f"{type(self).__name__} has no `verify`")

    def close(self) -> None:
        """Let go of what would outlive this process: a session with a server, say."""

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools on offer, in OpenAI's form, asked for once after `reset`: the public methods with a docstring."""
        from practicum.environments.toolbox import toolbox

        return [tool.schema for tool in toolbox(type(self)).values()]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool. What it returns is shown as it is where it is text, else as JSON; what it raises is told.

        Raises: ValueError naming the argument that does not fit the tool's types.
        """
        from practicum.environments.toolbox import toolbox

        return toolbox(type(self))[name].call(self, arguments)

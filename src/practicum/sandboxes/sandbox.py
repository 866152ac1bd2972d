"""The seam to isolated execution: a private folder, and processes that run in it and die with it.

Invariant: leaving a sandbox by any way, cancellation included, leaves no process, no folder and no port behind. A
sandbox must not know what runs in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process tree may use; None means no limit of ours."""

    cpu_s: float | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox must be before anything runs in it.

    `files` are text by path relative to the working folder. `env` is the whole environment of what runs inside, beside
    what the provider must set itself (HOME, PATH, TMPDIR). `gateway` is the one address (`http://127.0.0.1:PORT`) that
    stays reachable where the provider cuts off the network.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    gateway: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """How a command ended. `exit_code` is None where `timed_out`; output beyond the limit is cut, and `cut` says so."""

    exit_code: int | None
    stdout: str
    stderr: str
    timed_out: bool = False
    cut: bool = False


class Sandbox(Protocol):
    """One prepared sandbox. Paths are relative to its working folder; one that leads outside raises UsageError."""

    @property
    def workdir(self) -> str:
        """The working folder, as what runs inside sees it."""

    async def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float | None = None,
    ) -> Exited:
        """Run a command to its end; on timeout or cancellation its whole process tree is killed.

        Raises: SandboxError where it could not be started.
        """

    def stream(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> AsyncIterator[tuple[Stream, str]]:
        """Run a command and yield its output as it comes. Closing the iterator kills its process tree."""

    async def write(self, path: str, content: str) -> None:
        """Write a text file, folders included."""

    async def read(self, path: str, *, most_bytes: int = 1_000_000) -> str:
        """A text file. Raises NotFound."""

    async def list_files(self) -> list[str]:
        """Paths of all regular files."""


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind."""

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox for as long as the context is open. Raises SandboxError naming what is missing and the way out."""

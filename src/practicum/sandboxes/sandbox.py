"""The seam to isolated execution: a private folder, and processes that run in it and die with it.

Invariants: leaving a sandbox by any way, cancellation included, leaves no process, no folder and no port behind; no
process outlives the `run` that started it, so what is read or graded afterwards stands still. A sandbox must not know
what runs in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

Limit = Literal["cpu", "memory", "processes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process tree may use; None means no limit of ours.

    `file_bytes` bounds each file; `output_bytes` is how much of each of stdout and stderr is kept.
    """

    cpu_s: float | None = None
    memory_bytes: int | None = None
    file_bytes: int | None = None
    processes: int | None = None
    output_bytes: int = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox must be before anything runs in it.

    `files` are contents by path relative to the working folder. `env` is the whole environment of what runs inside,
    beside what the provider must set itself (HOME, PATH, TMPDIR). `gateway` is the one address
    (`http://127.0.0.1:PORT`) that stays reachable where the provider cuts off the network. `workdir` is where the
    working folder must appear inside (`/app`); None leaves it to the provider.
    """

    files: Mapping[str, str | bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    gateway: str | None = None
    workdir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """How a command ended. `exit_code` is None where `timed_out`, and 128 + N after signal N.

    Output that is no UTF-8 has replacement characters. Where there was more than the limit, its middle is left out and
    `cut` says so. `over` names the limit for which the whole tree was killed.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    timed_out: bool = False
    cut: bool = False
    over: Limit | None = None


class Sandbox(Protocol):
    """One prepared sandbox.

    Paths are relative to its working folder, or absolute below that or below a placed folder. One that leads outside,
    or through a symbolic link, raises UsageError.
    """

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
        """Run a command to its end; however that comes (timeout and cancellation too), its whole tree is then dead.

        Raises: SandboxError where it could not be started.
        """

    async def write(self, path: str, content: str | bytes, *, executable: bool = False) -> None:
        """Write a file, folders included, replacing what is there."""

    async def read(self, path: str, *, most_bytes: int = 1_000_000) -> str:
        """A file's text, the beginning of it where it is longer than `most_bytes`. Raises NotFound."""

    async def list_files(self, *, most: int = 100_000) -> list[str]:
        """Paths of all regular files in the working folder, sorted; `most` of them where there are more."""

    async def place(self, folder: str, files: Mapping[str, str | bytes]) -> None:
        """Put a fresh folder at an absolute path, with these files and nothing else, replacing what is there.

        Raises: SandboxError where this kind of sandbox has no paths of its own outside the working folder.
        """


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind."""

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox for as long as the context is open. Raises SandboxError naming what is missing and the way out."""


@runtime_checkable
class LooksAhead(Protocol):
    """What a provider may have beside: it knows of some failures before a sandbox is made."""

    def finds(self, program: str) -> bool:
        """Whether what runs in its sandboxes finds a program, by name or by absolute path."""

    def check_workdir(self, workdir: str | None) -> None:
        """Raises SandboxError where the working folder cannot appear there."""

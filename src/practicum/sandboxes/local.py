"""Sandboxes that are a private folder and limits, and no more: what runs inside is this user's process.

It finds an own HOME, TMPDIR and working folder and is killed with all its descendants, but it can read and write
whatever this user can, and use the network. For code that is not trusted there is `bubblewrap`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import shutil
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from practicum.errors import SandboxError, UsageError
from practicum.sandboxes.contained import list_files, read_file, write_file
from practicum.sandboxes.folder import MARK, PrivateFolder, default_base, kill_marked, sweep
from practicum.sandboxes.process import Job, run_kept, uninterrupted
from practicum.sandboxes.sandbox import Exited, SandboxSpec

_log = logging.getLogger("practicum.sandboxes")


class FolderSandbox(ABC):
    """A sandbox whose files lie in a folder of this machine. `roots` maps paths inside to folders here."""

    def __init__(self, folder: PrivateFolder, spec: SandboxSpec, workdir: str) -> None:
        self.folder = folder
        self.spec = spec
        self.roots: dict[str, Path] = {workdir: folder.path / "work"}
        self._workdir = workdir

    @property
    def workdir(self) -> str:
        """The working folder, as what runs inside sees it."""
        return self._workdir

    @abstractmethod
    async def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float | None = None,
    ) -> Exited:
        """Run a command to its end. Raises SandboxError where it could not be started."""

    async def write(self, path: str, content: str | bytes, *, executable: bool = False) -> None:
        """Write a file, folders included."""
        root, inner = self._find(path)
        await asyncio.to_thread(write_file, root, inner, content, executable=executable)

    async def read(self, path: str, *, most_bytes: int = 1_000_000) -> str:
        """A file's text. Raises NotFound."""
        root, inner = self._find(path)
        return await asyncio.to_thread(read_file, root, inner, most_bytes)

    async def list_files(self, *, most: int = 100_000) -> list[str]:
        """Paths of the regular files in the working folder."""
        return await asyncio.to_thread(list_files, self.roots[self._workdir], most)

    async def place(self, folder: str, files: Mapping[str, str | bytes]) -> None:
        """Put a fresh folder at an absolute path. Raises SandboxError."""
        raise SandboxError(
            f"A local sandbox has no {folder} of its own.",
            hint="Use `bubblewrap`, or a container, for tasks that need folders at given paths.",
        )

    def environment(self, home: str, tmp: str, env: Mapping[str, str] | None) -> dict[str, str]:
        """The whole environment of a command."""
        ours = {"HOME": home, "TMPDIR": tmp, "PATH": os.environ.get("PATH", os.defpath)}
        return {**ours, **self.spec.env, **(env or {}), MARK: self.folder.name}

    def _find(self, path: str) -> tuple[Path, str]:
        """The folder here and the path in it. The longest root wins: a folder may be placed within another."""
        if not path.startswith("/"):
            return self.roots[self._workdir], path
        plain = posixpath.normpath(path)
        for inside, root in sorted(self.roots.items(), key=lambda item: -len(item[0])):
            if plain.startswith(inside + "/"):
                return root, plain[len(inside) + 1 :]
        raise UsageError(
            f"The path {path[:200]!r} leads outside the sandbox's folders.",
            hint=f"They are: {', '.join(sorted(self.roots))}.",
            param="path",
        )


class LocalSandbox(FolderSandbox):
    """A folder, and processes of this user in it."""

    async def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float | None = None,
    ) -> Exited:
        """Run a command to its end. Raises SandboxError where it could not be started."""
        at = self.folder.path
        for name in ("work", "home", "tmp"):  # what ran before may have removed them
            (at / name).mkdir(exist_ok=True)
        job = Job(
            command=command,
            env=self.environment(str(at / "home"), str(at / "tmp"), env),
            cwd=str(at / "work"),
            stdin=stdin,
            limits=self.spec.limits,
        )
        return await run_kept(job, timeout_s=timeout_s)


class LocalProvider:
    """Makes local sandboxes below `base`."""

    def __init__(self, base: Path | None = None) -> None:
        self._folders = FolderMaker(base)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[LocalSandbox]:
        """A sandbox for as long as the context is open. Raises SandboxError."""
        self.check_workdir(spec.workdir)
        async with self._folders.made() as folder:
            sandbox = LocalSandbox(folder, spec, str(folder.path / "work"))
            for path, content in spec.files.items():
                await sandbox.write(path, content)
            yield sandbox

    def finds(self, program: str) -> bool:
        """Whether this machine has it."""
        return on_this_machine(program)

    def check_workdir(self, workdir: str | None) -> None:
        """Raises SandboxError for any place: the folder lies where it lies."""
        if workdir is not None:
            raise SandboxError(
                f"A local sandbox cannot have its working folder at {workdir}.",
                hint="Use `bubblewrap`, or a container.",
            )


def on_this_machine(program: str) -> bool:
    """Whether the PATH that sandboxes of this machine get leads to a program."""
    return shutil.which(program, path=os.environ.get("PATH", os.defpath)) is not None


class FolderMaker:
    """Makes the folders of one provider's sandboxes, and removes them; sweeps once, before the first."""

    def __init__(self, base: Path | None) -> None:
        self.base = base if base is not None else default_base()
        self._swept: asyncio.Future[None] | None = None

    @asynccontextmanager
    async def made(self) -> AsyncIterator[PrivateFolder]:
        """A folder for as long as the context is open; what runs in it when that ends is killed."""
        await self._sweep_once()
        folder = PrivateFolder(self.base)
        try:
            yield folder
        finally:
            await uninterrupted(asyncio.to_thread(_close, folder))

    async def _sweep_once(self) -> None:
        if self._swept is None:
            self._swept = asyncio.ensure_future(asyncio.to_thread(self._sweep))
        await asyncio.shield(self._swept)

    def _sweep(self) -> None:
        if removed := sweep(self.base):
            _log.warning("removed %d sandboxes that a killed process had left behind", len(removed))


def _close(folder: PrivateFolder) -> None:
    kill_marked(folder.name)
    try:
        folder.remove()
    except SandboxError as error:
        _log.error("%s", error)  # what the sandbox was for is done; the next sweep tries again

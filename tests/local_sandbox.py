"""The least sandbox that a harness needs: a folder to work in, a HOME beside it, processes that die with their run."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from practicum.errors import NotFound, SandboxError
from practicum.sandboxes.sandbox import Exited


class LocalSandbox:
    def __init__(self, root: Path, env: Mapping[str, str]) -> None:
        self.home, self._work = root / "home", root / "work"
        self.home.mkdir()
        self._work.mkdir()
        self._env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(root), "LANG": "C.UTF-8", **env}

    @property
    def workdir(self) -> str:
        return str(self._work)

    async def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float | None = None,
    ) -> Exited:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=self._work, env={**self._env, **(env or {})}, stdin=pipe, stdout=pipe, stderr=pipe,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SandboxError(f"{command[0]} could not be started: {error.strerror}.") from error
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await process.communicate(stdin.encode())
            return Exited(exit_code=process.returncode, stdout=out.decode(), stderr=err.decode())
        except TimeoutError:
            return Exited(exit_code=None, stdout="", stderr="", timed_out=True)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def write(self, path: str, content: str | bytes, *, executable: bool = False) -> None:
        target = self._work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    async def read(self, path: str, *, most_bytes: int = 1_000_000) -> str:
        try:
            return (self._work / path).read_bytes()[:most_bytes].decode()
        except FileNotFoundError as error:
            raise NotFound(f"There is no {path}.") from error

    async def list_files(self, *, most: int = 100_000) -> list[str]:
        found = (path for path in self._work.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self._work)) for path in found)[:most]


@asynccontextmanager
async def local_sandbox(env: Mapping[str, str] | None = None) -> AsyncIterator[LocalSandbox]:
    root = Path(tempfile.mkdtemp(prefix="practicum-"))
    try:
        yield LocalSandbox(root, env or {})
    finally:
        shutil.rmtree(root, ignore_errors=True)

"""Containers and clouds through the Inspect library: Docker, Kubernetes, Modal, Daytona, and whatever plugs into it.

One adapter for all of them: Inspect's `docker` comes with it, `k8s` with the package inspect-k8s-sandbox, `modal` and
`daytona` with inspect-sandboxes; a company's own kind registers itself in the same way.

What it cannot promise: a process that a command leaves in the background lives until the sandbox is closed, and limits
and network are those of the library's own configuration (a compose file, Helm values). Limits in the spec are refused.
The life of an environment, from its making to its removal, is one task of ours, so a cancelled `open` still removes
what was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import posixpath
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from practicum.errors import ConfigError, MissingExtra, NotFound, SandboxError, UsageError
from practicum.sandboxes.contained import inner_parts
from practicum.sandboxes.process import uninterrupted
from practicum.sandboxes.sandbox import Exited, Limits, SandboxSpec

_TASK = "practicum"


class InspectSandbox:
    """One environment of the Inspect library."""

    def __init__(self, environment: Any, spec: SandboxSpec, workdir: str) -> None:
        self._environment = environment
        self._spec = spec
        self._workdir = workdir
        self._placed: set[str] = set()

    @property
    def workdir(self) -> str:
        """The working folder, as what runs inside sees it."""
        return self._workdir

    async def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float | None = None,
    ) -> Exited:
        """Run a command to its end. Raises SandboxError where it could not be started.

        The library counts timeouts in whole seconds, so a part of one is rounded up.
        """
        if not command:
            raise SandboxError("There is no command to run.", hint="Give at least its name.")
        try:
            done = await self._environment.exec(
                list(command),
                input=stdin,
                cwd=self._workdir,
                env={**self._spec.env, **(env or {})},
                timeout=None if timeout_s is None else math.ceil(timeout_s),
                timeout_retry=False,
            )
        except TimeoutError:
            return Exited(exit_code=None, stdout="", stderr="", timed_out=True)
        except (FileNotFoundError, PermissionError) as error:
            raise SandboxError(
                f"{command[0][:200]} could not be started: {error.strerror or error}.",
                hint="See that it is installed and on the sandbox's PATH.",
            ) from error
        except Exception as error:
            raise _lost(error) from error
        most = self._spec.limits.output_bytes
        out, err = str(done.stdout), str(done.stderr)
        return Exited(
            exit_code=int(done.returncode), stdout=out[-most:], stderr=err[-most:], cut=max(len(out), len(err)) > most
        )

    async def write(self, path: str, content: str | bytes, *, executable: bool = False) -> None:
        """Write a file, folders included, replacing what is there, a link too."""
        target = self._inside(path)
        await self._must(["rm", "-rf", "--", target])
        try:
            await self._environment.write_file(target, content)
        except Exception as error:
            raise _lost(error) from error
        if executable:
            await self._must(["chmod", "755", "--", target])

    async def read(self, path: str, *, most_bytes: int = 1_000_000) -> str:
        """A file's text. Raises NotFound."""
        target = self._inside(path)
        try:
            data = await self._environment.read_file(target, text=False)
        except FileNotFoundError:
            raise NotFound(f"There is no file {path[:200]!r} in the sandbox.") from None
        except IsADirectoryError:
            raise UsageError(f"{path[:200]!r} is no regular file.") from None
        except Exception as error:
            raise _lost(error) from error
        return bytes(data[:most_bytes]).decode("utf-8", "replace")

    async def list_files(self, *, most: int = 100_000) -> list[str]:
        """Paths of the regular files in the working folder."""
        said = await self._must(["find", ".", "-type", "f", "-print0"])
        return sorted(path.removeprefix("./") for path in said.split("\0") if path)[:most]

    async def place(self, folder: str, files: Mapping[str, str | bytes]) -> None:
        """Put a fresh folder at an absolute path."""
        inside = posixpath.normpath(folder)
        if not inside.startswith("/") or inside == "/" or (self._workdir + "/").startswith(inside + "/"):
            raise UsageError(
                f"No folder can be placed at {folder[:200]!r}.", hint="Give an absolute path such as /tests."
            )
        await self._must(["rm", "-rf", "--", inside])
        await self._must(["mkdir", "-p", "--", inside])
        self._placed.add(inside)
        for path, content in files.items():
            await self.write(posixpath.join(inside, "/".join(inner_parts(path))), content)

    def _inside(self, path: str) -> str:
        """The absolute path. Links are the container's own affair: they lead nowhere outside of it."""
        if not path.startswith("/"):
            return posixpath.join(self._workdir, "/".join(inner_parts(path)))
        plain = posixpath.normpath(path)
        if not any(plain.startswith(root + "/") for root in (self._workdir, *self._placed)):
            raise UsageError(f"The path {path[:200]!r} leads outside the sandbox's folders.", param="path")
        return plain

    async def _must(self, command: Sequence[str]) -> str:
        done = await self.run(command)
        if done.exit_code != 0:
            raise SandboxError(f"`{command[0]}` failed in the sandbox: {done.stderr.strip()[-300:]}")
        return done.stdout


class InspectProvider:
    """Makes sandboxes of one of the library's kinds. `config` is its configuration file. Raises MissingExtra."""

    def __init__(self, kind: str, config: str | None = None) -> None:
        self._kind = kind
        self._config = config
        try:
            registry = importlib.import_module("inspect_ai.util._sandbox.registry")
            importlib.import_module("inspect_ai.util")
        except ImportError as error:
            raise MissingExtra(
                "Sandboxes of the Inspect library need it installed.",
                hint='Install it: pip install "practicum[sandboxes-remote]".',
            ) from error
        try:
            self._type: Any = registry.registry_find_sandboxenv(kind)
        except ValueError as error:
            raise ConfigError(f"The Inspect library cannot make sandboxes of the kind {kind!r}: {error}") from error

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[InspectSandbox]:
        """A sandbox for as long as the context is open. Raises SandboxError."""
        if spec.limits != Limits(output_bytes=spec.limits.output_bytes):
            raise SandboxError(
                f"Limits cannot be given to an Inspect {self._kind} sandbox from here.",
                hint="Set them in its own configuration (a compose file, Helm values).",
            )
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        leave = asyncio.Event()
        life = asyncio.create_task(self._live(ready, leave), name=f"sandbox inspect:{self._kind}")
        try:
            await asyncio.wait({ready, life}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                await life  # it failed, and says how
            yield await self._prepared(ready.result(), spec)
        finally:
            leave.set()
            await uninterrupted(_ended(life))

    async def _live(self, ready: asyncio.Future[Any], leave: asyncio.Event) -> None:
        """Make an environment, keep it until `leave`, remove it."""
        try:
            await self._type.task_init(_TASK, self._config)
            made = await self._type.sample_init(_TASK, self._config, {})
        except Exception as error:
            with contextlib.suppress(Exception):
                await self._type.task_cleanup(_TASK, self._config, True)
            raise _lost(error) from error
        try:
            ready.set_result(next(iter(made.values())))
            await leave.wait()
        finally:
            await self._type.sample_cleanup(_TASK, self._config, made, False)
            await self._type.task_cleanup(_TASK, self._config, True)

    async def _prepared(self, environment: Any, spec: SandboxSpec) -> InspectSandbox:
        asked = spec.workdir
        sandbox = InspectSandbox(environment, spec, asked or ".")
        if asked is not None:
            await InspectSandbox(environment, spec, "/")._must(["mkdir", "-p", "--", asked])
        where = (await sandbox._must(["pwd"])).strip()
        sandbox = InspectSandbox(environment, spec, where)
        for path, content in spec.files.items():
            await sandbox.write(path, content)
        return sandbox


async def _ended(life: asyncio.Task[None]) -> None:
    with contextlib.suppress(SandboxError):  # told to whoever opened it
        await life


def _lost(error: Exception) -> SandboxError:
    return SandboxError(
        f"The sandbox failed: {type(error).__name__}: {str(error)[:500]}",
        hint="See that the engine behind it (Docker, the cluster, the cloud account) is reachable.",
    )

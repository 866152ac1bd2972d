"""Sandboxes by bubblewrap (Linux): this machine's programs, read only, and nothing else of it.

Inside, the root filesystem cannot be written, HOME, /tmp and the working folder are the sandbox's own, no process
outside can be seen, and there is no network but the gateway. Every command has a process namespace of its own, so the
kernel ends all of it at once. What this user can read, what runs inside can read too, beside `hide`.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import SandboxError, UsageError
from practicum.sandboxes.contained import write_file
from practicum.sandboxes.folder import MARK, PrivateFolder
from practicum.sandboxes.local import FolderMaker, FolderSandbox, on_this_machine
from practicum.sandboxes.process import Job, run_kept
from practicum.sandboxes.relay import Relay, gateway_address
from practicum.sandboxes.sandbox import Exited, SandboxSpec

HOME, WORKDIR = "/sandbox/home", "/sandbox/work"
_STARTER = Path(__file__).with_name("starter.py")
_INSIDE_STARTER = "/run/practicum/starter.py"
# Made anew inside; what the host has there stays out. Sockets below /run would be doors out of the sandbox.
_FRESH = ("proc", "dev", "tmp", "run", "sandbox")
# Below the user's home: what opens other doors.
_SECRETS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".pypirc", ".npmrc"),
    *(".config/gcloud", ".config/gh", ".cache/huggingface/token", ".local/share/keyrings", ".mozilla"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What of this machine can be seen inside, beside its programs: not `hide`, yet `show`, which wins."""

    hide: tuple[Path, ...] = ()
    show: tuple[Path, ...] = ()


class BubblewrapSandbox(FolderSandbox):
    """A folder, and processes that see little else."""

    def __init__(self, folder: PrivateFolder, spec: SandboxSpec, bwrap: str, view: View) -> None:
        super().__init__(folder, spec, posixpath.normpath(spec.workdir or WORKDIR))
        self._bwrap = bwrap
        self._view = view
        self._gateway = gateway_address(spec.gateway)

    async def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float | None = None,
    ) -> Exited:
        """Run a command to its end. Raises SandboxError where it could not be started."""
        if not command:
            raise SandboxError("There is no command to run.", hint="Give at least its name.")
        inside = self._environment(env)
        ours, theirs = socket.socketpair()
        relay = Relay(ours, self._gateway)
        said = ""
        try:
            with theirs, os.fdopen(inside, "rb"):
                port = self._gateway[1] if self._gateway else 0
                starter = [_python(), "-I", "-S", _INSIDE_STARTER, str(theirs.fileno()), str(port)]
                job = Job(
                    command=[self._bwrap, "--args", str(inside), *self._options(), "--", *starter, *command],
                    env={MARK: self.folder.name},
                    cwd="/",
                    stdin=stdin,
                    limits=self.spec.limits,
                    fds=(theirs.fileno(), inside),
                )
                exited = await run_kept(job, timeout_s=timeout_s)
        finally:
            said = await relay.close()
        if "failed: " in said:
            raise SandboxError(
                f"{command[0][:200]} could not be started: {said.partition('failed: ')[2]}.",
                hint="See that it is installed and on the sandbox's PATH.",
            )
        if not said and not exited.timed_out and exited.over is None:
            raise SandboxError(f"bubblewrap could not make the sandbox: {exited.stderr.strip()[-500:]}", hint=_WAY_OUT)
        return exited

    def _environment(self, env: Mapping[str, str] | None) -> int:
        """A file of bubblewrap's options that set the environment inside.

        bubblewrap itself must have none of it: what a loader reads there (LD_PRELOAD) would be run outside. And its
        command line, which anybody can read, must hold no key. Raises SandboxError for what no environment can hold.
        """
        data = b""
        for name, value in self.environment(HOME, "/tmp", env).items():
            try:
                option = b"\0".join(os.fsencode(part) for part in ("--setenv", name, value))
            except UnicodeEncodeError:
                option = b""
            if not name or "=" in name or option.count(b"\0") != 2:
                raise SandboxError(
                    f"The environment cannot hold a variable {name[:80]!r} with this value.",
                    hint="Leave out what has no UTF-8, and null characters.",
                )
            data += option + b"\0"
        file = os.memfd_create("environment", os.MFD_CLOEXEC)
        os.pwrite(file, data, 0)
        return file

    async def place(self, folder: str, files: Mapping[str, str | bytes]) -> None:
        """Put a fresh folder at an absolute path; what the sandbox had there is covered, and never read again."""
        inside = posixpath.normpath(folder)
        if not inside.startswith("/") or inside == "/" or inside.split("/")[1] in ("proc", "dev", "sys"):
            raise UsageError(
                f"No folder can be placed at {folder[:200]!r}.", hint="Give an absolute path such as /tests."
            )
        root = self.folder.path / f"placed-{os.urandom(6).hex()}"
        await asyncio.to_thread(_fill, root, files)
        for other in [one for one in self.roots if one == inside or one.startswith(inside + "/")]:
            if other == self.workdir:
                raise UsageError(f"{folder!r} would cover the working folder {self.workdir}.")
            del self.roots[other]
        self.roots[inside] = root

    def _options(self) -> list[str]:
        """bubblewrap's options; a later one is laid over an earlier."""
        at = self.folder.path
        out = ["--unshare-all", "--unshare-user", "--die-with-parent", "--cap-drop", "ALL", "--hostname", "sandbox"]
        for entry in sorted(os.scandir("/"), key=lambda one: one.name):
            if entry.name not in _FRESH:
                out += (
                    ["--symlink", str(Path(entry.path).readlink()), entry.path]
                    if entry.is_symlink()
                    else _seen(entry.path)
                )
        out += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run", "--bind", str(at / "tmp"), "/tmp"]
        out += ["--tmpfs", "/var/tmp"] if Path("/var/tmp").is_dir() else []
        for path in (at.parent, *self._view.hide):
            out += _hidden(path)
        for path in self._view.show:
            out += _seen(str(path))
        out += ["--ro-bind", str(_STARTER), _INSIDE_STARTER, "--bind", str(at / "home"), HOME]
        for inside, root in sorted(self.roots.items(), key=lambda item: len(item[0])):
            out += ["--bind", str(root), inside]
        return [*out, "--remount-ro", "/", "--chdir", self.workdir]


class BubblewrapProvider:
    """Makes bubblewrap sandboxes. `hide` and `show` are paths that are never, or always, seen inside."""

    def __init__(
        self, base: Path | None = None, *, hide: Sequence[Path] = (), show: Sequence[Path] = (), bwrap: str = "bwrap"
    ) -> None:
        self._folders = FolderMaker(base)
        self._bwrap = bwrap
        secrets = [Path.home() / name for name in _SECRETS]
        ours = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
        self._view = View(
            hide=tuple(path for path in (*secrets, *(one.resolve() for one in hide)) if path.exists()),
            show=tuple(sorted({*(path for path in ours if _covered(path)), *(one.resolve() for one in show)})),
        )
        self._works = False

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[BubblewrapSandbox]:
        """A sandbox for as long as the context is open. Raises SandboxError naming what is missing."""
        bwrap = shutil.which(self._bwrap)
        if bwrap is None:
            raise SandboxError(
                "bubblewrap is not installed.",
                hint="Install it (`apt-get install bubblewrap`), or use `local` sandboxes.",
            )
        async with self._folders.made() as folder:
            sandbox = BubblewrapSandbox(folder, spec, bwrap, self._view)
            if not self._works:  # so that a system that does not allow it is found here, and not by the first command
                await sandbox.run(["true"], timeout_s=30)
                self._works = True
            for path, content in spec.files.items():
                await sandbox.write(path, content)
            yield sandbox

    def finds(self, program: str) -> bool:
        """Whether this machine has it; what is hidden inside is not looked at."""
        return on_this_machine(program)

    def check_workdir(self, workdir: str | None) -> None:
        """Any place will do."""

    async def check(self) -> None:
        """Raises SandboxError where bubblewrap sandboxes cannot be made on this system."""
        async with self.open(SandboxSpec()):
            pass


_WAY_OUT = (
    "User namespaces may be switched off here: see docs/sandboxes.md for the setting, or use `local` sandboxes, "
    "or a container."
)


def _python() -> str:
    """The interpreter behind a virtual environment: the starter needs nothing but the standard library."""
    return os.path.realpath(sys.executable)


def _covered(path: Path) -> bool:
    """Whether what a sandbox has of its own would cover `path`."""
    return path.parts[1:2] != () and (path.parts[1] in _FRESH or path.parts[1:3] == ("var", "tmp"))


def _seen(path: str) -> list[str]:
    return ["--ro-bind-try", path, path]


def _hidden(path: Path) -> list[str]:
    if _covered(path):  # never seen in the first place
        return []
    return ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]


def _fill(root: Path, files: Mapping[str, str | bytes]) -> None:
    root.mkdir(mode=0o755)
    for path, content in files.items():
        write_file(root, path, content)

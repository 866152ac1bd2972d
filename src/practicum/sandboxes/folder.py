"""The folder of one sandbox: made private, owned by a lock, removed whatever is in it.

A file lock beside each folder is held for as long as its owner lives, by whatever end. So a later process can tell a
folder that a killed one left behind from one in use, in other containers too, and `sweep` removes the former, with any
process that still runs in it. It must not know what sandboxes are for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from practicum.errors import SandboxError

# In the environment of everything that runs in a sandbox: its name.
MARK = "PRACTICUM_SANDBOX"
_KILL_ROUNDS = 200


def default_base() -> Path:
    """Where sandboxes lie: one folder for each user, in the system's place for temporary files."""
    return Path(tempfile.gettempdir()) / f"practicum-sandboxes-{os.getuid()}"


class PrivateFolder:
    """`path` with `work`, `home` and `tmp` in it. Raises SandboxError where it cannot be made."""

    def __init__(self, base: Path) -> None:
        try:
            _make_base(base)
            self._lock, self._fd = _locked(base)
            self.path = self._lock.with_suffix("")
            try:
                for name in ("work", "home", "tmp"):
                    (self.path / name).mkdir(parents=True, mode=0o700)
            except OSError:
                self.remove()
                raise
        except OSError as error:
            raise SandboxError(
                f"No folder for a sandbox could be made in {base}: {error.strerror}.",
                hint="Free some space, or set TMPDIR to a folder that has it.",
            ) from error

    @property
    def name(self) -> str:
        """The sandbox's name, unique on this machine."""
        return self.path.name

    def remove(self) -> None:
        """Remove everything. Raises SandboxError naming what could not be removed."""
        try:
            _remove(self.path)
            self._lock.unlink(missing_ok=True)
        finally:
            os.close(self._fd)


def sweep(base: Path) -> list[str]:
    """Remove what dead owners left behind, processes first; the names of what was removed."""
    removed = []
    for lock in sorted(base.glob("*.lock")):
        with contextlib.suppress(OSError):  # its owner may be removing it right now
            fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                name = lock.stem
                kill_marked(name)
                _remove(lock.with_suffix(""))
                lock.unlink()
                removed.append(name)
            except SandboxError:
                continue
            finally:
                os.close(fd)
    return removed


def kill_marked(name: str) -> None:
    """Kill every process that carries a sandbox's mark (Linux). Its keeper does that, unless it was killed itself."""
    mark = f"{MARK}={name}".encode()
    for _ in range(_KILL_ROUNDS):
        found = [pid for pid in _processes() if mark in _environment(pid).split(b"\0")]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _processes() -> list[int]:
    proc = Path("/proc")
    return [int(one.name) for one in proc.iterdir() if one.name.isdigit()] if proc.is_dir() else []


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended, or is another user's
        return b""


def _make_base(base: Path) -> None:
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700, parents=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SandboxError(
            f"{base} is not a private folder of this user's: another user could look into the sandboxes.",
            hint="Remove it, or set TMPDIR to a folder of your own.",
        )


def _locked(base: Path) -> tuple[Path, int]:
    """A lock file of ours. A sweep that comes between making and locking it takes it away: then try again."""
    while True:
        lock = base / f"{os.getpid()}-{secrets.token_hex(6)}.lock"
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return lock, fd
        except BlockingIOError:
            pass
        os.close(fd)


def _remove(path: Path) -> None:
    """`rm` and not our own walk: it copes with any depth, and never follows a link."""
    if not os.path.lexists(path):
        return
    said = _run("rm", "-rf", "--", str(path))
    if os.path.lexists(path):
        _run("chmod", "-R", "u+rwX", "--", str(path))
        said = _run("rm", "-rf", "--", str(path))
    if os.path.lexists(path):
        raise SandboxError(f"The folder {path} could not be removed: {said[-300:]}", hint="Remove it by hand.")


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stderr.strip()

"""Files of a folder that untrusted code has written: read, written and listed without ever leaving it.

Every step from the folder to the file is opened by itself, relative to the step before, and none may be a symbolic
link. So a link planted by what ran inside leads nowhere, even where it is planted between two steps. A file is written
beside its place and moved there, so that what stands there (a link, a second name of some other file) is replaced and
never written through.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from practicum.errors import NotFound, SandboxError, UsageError

_DEEPEST = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(root: Path, path: str, content: str | bytes, *, executable: bool = False) -> None:
    """Write a file below `root`, folders included. Raises UsageError for a path that leads outside."""
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    parts = inner_parts(path)
    with _folder(root, path, parts[:-1], create=True) as folder, _said(path):
        beside = f".{secrets.token_hex(8)}"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), 0o755 if executable else 0o644)
            os.rename(beside, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=folder)
            raise


def read_file(root: Path, path: str, most_bytes: int) -> str:
    """A regular file's first bytes as text. Raises NotFound, UsageError."""
    parts = inner_parts(path)
    with _folder(root, path, parts[:-1], create=False) as folder, _said(path):
        # Without waiting: a named pipe in a file's place would hold us up for ever.
        fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UsageError(f"{path[:200]!r} in the sandbox is no regular file.")
            with os.fdopen(fd, "rb", closefd=False) as file:
                return file.read(most_bytes).decode("utf-8", "replace")
        finally:
            os.close(fd)


def list_files(root: Path, most: int) -> list[str]:
    """Paths of regular files below `root`, sorted; none that lies more than 64 folders deep. Links are not followed.

    A name that is no UTF-8 has surrogate escapes, as `os.fsdecode` makes them, and is good for reading.
    """
    found: list[str] = []
    queue: list[tuple[str, ...]] = [()]
    while queue and len(found) < most:
        parts = queue.pop()
        with contextlib.suppress(UsageError, SandboxError, OSError), _folder(root, "", parts, create=False) as folder:
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    if len(parts) < _DEEPEST:
                        queue.append((*parts, entry.name))
                elif entry.is_file(follow_symlinks=False):
                    found.append("/".join((*parts, entry.name)))
                    if len(found) >= most:
                        break
    return sorted(found)


def inner_parts(path: str) -> list[str]:
    """The steps of a relative path that names a file below a folder. Raises UsageError for any other."""
    plain = posixpath.normpath(path)
    parts = plain.split("/")
    if not path or "\0" in path or plain.startswith("/") or parts[0] in (".", ".."):
        raise UsageError(
            f"The path {path[:200]!r} does not name a file inside the sandbox's folder.",
            hint="Give a path relative to the working folder, without leaving it.",
            param="path",
        )
    return parts


@contextlib.contextmanager
def _folder(root: Path, path: str, parts: tuple[str, ...] | list[str], *, create: bool) -> Iterator[int]:
    fd = os.open(root, _FOLDER)
    try:
        for part in parts:
            with _said(path):
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=fd)
                fd, old = os.open(part, _FOLDER, dir_fd=fd), fd
                os.close(old)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _said(path: str) -> Iterator[None]:
    """Say what the system's error means for this path."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"There is no file {path[:200]!r} in the sandbox.") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENAMETOOLONG, errno.EMLINK):
            raise UsageError(
                f"{path[:200]!r} is no file below real folders of the sandbox: {error.strerror}.",
                hint="Symbolic links are not followed from outside.",
            ) from None
        raise SandboxError(f"{path[:200]!r} in the sandbox could not be used: {error.strerror}.") from error

"""How a connection to the store's file is opened: durable, patient and checked.

APSW brings its own, recent SQLite. The interpreter's library is usually years older, and every SQLite from 3.7.0 to
3.51.2 can corrupt a WAL file that several connections write and checkpoint (fixed in 3.51.3); a build of APSW against
such a library is refused.

`synchronous = FULL` makes every commit wait for the disk: with NORMAL, a power loss takes acknowledged commits with
it, and no test that only kills the process shows it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import apsw

from practicum.errors import SchemaError, StoreError

BUSY_TIMEOUT_S = 30.0
_OLDEST_SQLITE = (3, 51, 3)

# Errors of the file or the disk; everything else that a job raises is the job's own.
FILE_ERRORS: tuple[type[Exception], ...] = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.FullError,
    apsw.IOError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.NotADBError,
    apsw.PermissionsError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)


def store_error(error: Exception) -> StoreError:
    """The user's view of a file error."""
    if isinstance(error, apsw.FullError):
        return StoreError(f"The store could not write: {error}.", hint="Free disk space; writing resumes by itself.")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreError(
            f"Another process held the store for more than {BUSY_TIMEOUT_S:.0f} s.",
            hint="End the process that hangs; writing resumes by itself.",
        )
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return SchemaError(f"The store's file cannot be read: {error}.", hint="Restore it from a backup.")
    return StoreError(f"The store failed: {error}.", hint="Check the disk and the permissions of the store's folder.")


def check_library() -> None:
    """Raises StoreError where APSW was built against a SQLite with the WAL-reset bug."""
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:3]) < _OLDEST_SQLITE:
        raise StoreError(
            f"SQLite {version} can corrupt a WAL file that several processes write.",
            hint="Install the wheel that brings its own: pip install --force-reinstall --only-binary :all: apsw",
        )


def create_file(path: Path) -> None:
    """Make the folder and an empty file that only its owner can read; the WAL inherits the mode."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"The store {path} cannot be created: {error}.", hint="Choose another `home`.") from error


def open_writer(path: Path, vfs: str = "") -> Any:
    """A connection that writes: WAL, FULL, foreign keys."""
    connection = _open(path, vfs)
    _enter_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def open_reader(path: Path, vfs: str = "") -> Any:
    """A connection that reads only."""
    connection = _open(path, vfs)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _open(path: Path, vfs: str) -> Any:
    connection: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs or None)
    connection.set_busy_timeout(int(BUSY_TIMEOUT_S * 1000))
    return connection


def _enter_wal(connection: Any) -> None:
    """Switch to WAL. SQLite does not wait for locks here where waiting could deadlock, so this loop does."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").get
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        except apsw.NotADBError as error:
            raise SchemaError("The file is not a Practicum store.", hint="Give the path of another file.") from error
        if mode != "wal":
            raise StoreError(f"The store's file system keeps journal mode {mode!r}.", hint="Use a local disk.")
        return

"""One rollout service per store: a lock on a file beside it, which the system lets go of when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from practicum.errors import Conflict


class QueueLock:
    """The right to run the rollouts of the store at `store_path`."""

    def __init__(self, store_path: Path) -> None:
        self._path = store_path.with_name(store_path.name + ".rollouts.lock")
        self._file: int | None = None

    def acquire(self) -> None:
        """Hold it; again is harmless. Raises Conflict where another service does."""
        if self._file is not None:
            return
        file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise Conflict(
                f"Another rollout service runs the rollouts of {self._path.parent}.",
                hint="Submit to that one, stop it first, or give this one a `--home` of its own.",
                code="rollouts_locked",
            ) from error
        self._file = file

    def release(self) -> None:
        """Let go. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

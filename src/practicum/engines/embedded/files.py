"""Atomic folders: built beside their place, flushed to disk, renamed. A crash leaves none, never half of one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` when the block ends, and is removed when it raises.

    Raises: FileExistsError if something that is not an empty folder stands at `target`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        yield draft
        draft.chmod(0o755)
        for entry in [*draft.rglob("*"), draft]:
            _sync(entry)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileExistsError(f"{target} exists and is not empty")
        draft.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

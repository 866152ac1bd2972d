"""Digests of files and folders: how a policy version's weights are named and checked. Knows nothing of tensors."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(path: Path, *, exclude: frozenset[str] = frozenset()) -> str:
    """SHA-256, in hex, over every file below `path`: its relative name and the SHA-256 of its content, name by name.

    Names use `/` and are sorted, so the digest is the same on every machine; times and modes do not count.
    `exclude` names files that are left out (a manifest that holds the digest itself).
    A symbolic link raises ValueError: what it points to could change without the digest changing.
    """
    total = hashlib.sha256()
    names = sorted(entry.relative_to(path).as_posix() for entry in path.rglob("*") if not _is_folder(entry))
    for name in names:
        if name in exclude:
            continue
        total.update(f"{name}\0{file_digest(path / name)}\n".encode())
    return total.hexdigest()


def _is_folder(entry: Path) -> bool:
    if entry.is_symlink():
        raise ValueError(f"{entry} is a symbolic link; a digest covers regular files only")
    return entry.is_dir()

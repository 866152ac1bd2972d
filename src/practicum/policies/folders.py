"""Adapter folders on disk: checked, and copied so that a folder under its final name is always whole.

A copy is written beside its destination, every file and the folder are synced, the folder is renamed, and the parent
is synced. A kill at any point leaves either no folder of that name or all of it.

Only .safetensors, .json and .md files may be in one: nothing that a loader would run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from practicum.errors import UsageError

ALLOWED_SUFFIXES = frozenset({".safetensors", ".json", ".md"})
REQUIRED_FILES = ("adapter_config.json", "adapter_model.safetensors")


def check_adapter(folder: Path) -> list[Path]:
    """The files of an adapter folder, sorted.

    Raises: UsageError for a missing file, a subfolder, a link, or a kind of file that does not belong in one.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.", hint="Give the folder that the trainer published.")
    files = sorted(folder.iterdir())
    for file in files:
        if file.is_symlink() or not file.is_file():
            raise UsageError(f"{file} is not a regular file.", hint="An adapter folder holds files only.")
        if file.suffix not in ALLOWED_SUFFIXES:
            allowed = ", ".join(sorted(ALLOWED_SUFFIXES))
            raise UsageError(f"{file} does not belong in an adapter folder.", hint=f"Allowed are {allowed}.")
    for name in REQUIRED_FILES:
        if not (folder / name).is_file():
            raise UsageError(f"{folder} has no {name}.", hint="Give a complete LoRA adapter in PEFT's layout.")
    return files


def copy_adapter(source: Path, destination: Path, crashpoint: Callable[[str], None]) -> None:
    """Copy an adapter folder durably and atomically. Raises UsageError as `check_adapter`; OSError of the disk."""
    files = check_adapter(source)
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for file in files:
        shutil.copyfile(file, partial / file.name)
        sync(partial / file.name)
        crashpoint("file_copied")
    sync(partial)
    crashpoint("copied")
    partial.rename(destination)
    crashpoint("renamed")
    sync(destination.parent)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

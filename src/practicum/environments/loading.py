"""Load a team's file or module, and say where in it something failed. It runs in the environment's own process."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_TOLD_CHARS = 500


def module(asked: Mapping[str, str]) -> ModuleType:
    """`{"file": path}` or `{"module": name}`. Raises what loading raises."""
    if "module" in asked:
        return importlib.import_module(asked["module"])
    path = Path(asked["file"])
    spec = importlib.util.spec_from_file_location(f"practicum_environment_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded as Python: its name must end in .py")
    sys.path.insert(0, str(path.parent))  # so that it can import its neighbours
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses in the file look their module up
    spec.loader.exec_module(loaded)
    return loaded


def named(loaded: ModuleType, name: str) -> Any:
    """What stands under a dotted name. Raises AttributeError."""
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part)
    return found


def told(error: BaseException) -> str:
    """What was raised, and the last line outside of Practicum and the standard library that it passed through."""
    text = f"{type(error).__name__}: {error}".strip().rstrip(".")
    text = text if len(text) <= _TOLD_CHARS else text[:_TOLD_CHARS] + "…"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} in {error.filename}"
    ours = str(Path(__file__).parent.parent)
    places = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, sys.base_prefix, sys.prefix, "<"))
    ]
    return f"{text} ({places[-1]})" if places else text

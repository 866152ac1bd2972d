"""A script: the process in which a team's graders run. It reads one JSON object and writes one.

What the graders print goes to stderr, so that nothing they print can pass for their verdict. It imports nothing but
the standard library: what else the graders need is theirs to import.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main() -> None:
    """Load the file, ask each grader, say what each returned or how it failed."""
    asked = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        table = _table(Path(asked["path"]))
        names = asked["graders"] or list(table)
        missing = [name for name in names if name not in table]
        if missing:
            raise LookupError(f"GRADERS has no {', '.join(missing)}; it has {', '.join(table)}")
        final = asked["final"]
        said: dict[str, Any] = {"verdicts": {name: _verdict(table[name], SimpleNamespace(**final)) for name in names}}
    except BaseException as error:  # a file of graders may even exit
        said = {"error": f"{asked['path']}: {type(error).__name__}: {error}"}
    with answer:
        json.dump(said, answer)


def _table(path: Path) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LookupError("its name must end in .py")
    sys.path.insert(0, str(path.parent))  # so that it can import its neighbours
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = getattr(module, "GRADERS", None)
    if not isinstance(table, dict) or not table or not all(callable(grader) for grader in table.values()):
        raise LookupError('it has no table of functions: GRADERS = {"name": function}')
    return table


def _verdict(grader: Any, final: SimpleNamespace) -> dict[str, Any]:
    try:
        value = grader(final)
        json.dumps(value)
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": value}


if __name__ == "__main__":
    main()

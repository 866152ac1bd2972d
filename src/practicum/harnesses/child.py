"""The child process of a Python agent: import `module:function`, call it with the job, keep what it returns.

Its text is handed to the interpreter as it stands, so that the agent's own environment need not have Practicum. It
needs nothing but the standard library of Python 3.9, and must not import Practicum.
"""

# Python 3.9, whatever the rest of Practicum needs.
import asyncio
import importlib
import inspect
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Awaitable  # noqa: UP035

ANSWER = ".practicum/answer.txt"


def main() -> None:
    """argv: `module:function`. stdin: the job as JSON. The answer goes to a file below HOME, never to stdout."""
    job = json.load(sys.stdin, object_hook=lambda members: SimpleNamespace(**members))
    module, _, function = sys.argv[1].partition(":")
    returned = getattr(importlib.import_module(module), function)(job)
    if inspect.isawaitable(returned):
        returned = asyncio.run(_wait(returned))
    path = Path(os.environ["HOME"], ANSWER)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("" if returned is None else str(returned), encoding="utf-8")


async def _wait(returned: Awaitable[object]) -> object:
    return await returned


if __name__ == "__main__":
    main()

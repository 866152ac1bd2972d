"""verifiers' own chat program, run with the interpreter that has verifiers.

The library's `null` harness has `uv` make an environment for its program first, from a package index. A rollout's
sandbox has no network, and this interpreter has all that the program imports; everything else is the library's.
"""

import sys
from pathlib import Path
from typing import Any

from verifiers.v1.harnesses.null import NullHarness

__all__ = ["PracticumChatHarness"]


class _AsItIs:
    """A runtime that runs prepared programs with this interpreter."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    async def prepare_uv_script(self, script: Any, env: Any = None, *, activate: bool = True) -> list[str]:
        """Put the program into the runtime's folder."""
        data = script.encode() if isinstance(script, str) else script
        await self._runtime.write(".practicum_chat.py", data)
        return [sys.executable, str(Path(self._runtime.info.id, ".practicum_chat.py"))]


class PracticumChatHarness(NullHarness):  # type: ignore[misc]
    """`null`, without `uv`. For the subprocess runtime."""

    async def setup(self, runtime: Any) -> None:
        """Nothing to make ready."""

    async def launch(self, ctx: Any, trace: Any, runtime: Any, *args: Any, **options: Any) -> Any:
        """The library's own launch."""
        return await super().launch(ctx, trace, _AsItIs(runtime), *args, **options)

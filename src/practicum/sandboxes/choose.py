"""Which kind of sandbox: one table from a name in a configuration to a provider.

`auto` is bubblewrap where that works, else local with a warning. A name `inspect:KIND` is a kind of sandbox that the
Inspect library knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from practicum.errors import ConfigError, SandboxError
from practicum.sandboxes.bubblewrap import BubblewrapProvider
from practicum.sandboxes.inspect_library import InspectProvider
from practicum.sandboxes.local import LocalProvider
from practicum.sandboxes.sandbox import LooksAhead, Sandbox, SandboxProvider, SandboxSpec

_log = logging.getLogger("practicum.sandboxes")
_INSPECT = "inspect:"


def provider(
    name: str = "auto", *, hide: Sequence[Path] = (), show: Sequence[Path] = (), config: str | None = None
) -> SandboxProvider:
    """The provider of a name. `hide` and `show` are bubblewrap's, `config` is the Inspect library's (a compose file).

    Raises: ConfigError for a name that does not exist; MissingExtra.
    """
    if name.startswith(_INSPECT):
        return InspectProvider(name.removeprefix(_INSPECT), config)
    kinds: Mapping[str, Callable[[], SandboxProvider]] = {
        "auto": lambda: AutoProvider(BubblewrapProvider(hide=hide, show=show), LocalProvider()),
        "bubblewrap": lambda: BubblewrapProvider(hide=hide, show=show),
        "local": LocalProvider,
    }
    if name not in kinds:
        raise ConfigError(
            f"There is no kind of sandbox {name!r}.",
            hint=f"There are: {', '.join(kinds)}, inspect:docker, inspect:k8s, …",
        )
    return kinds[name]()


class AutoProvider:
    """The first of two kinds where it works, else the second. Decided once, and said."""

    def __init__(self, first: BubblewrapProvider, second: SandboxProvider) -> None:
        self._first = first
        self._second = second
        self._chosen: SandboxProvider | None = None
        self._choosing = asyncio.Lock()

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """A sandbox for as long as the context is open. Raises SandboxError."""
        async with self._choosing:
            if self._chosen is None:
                self._chosen = await self._choose()
        async with self._chosen.open(spec) as sandbox:
            yield sandbox

    def finds(self, program: str) -> bool:
        """Whether this machine has it: both kinds see its programs."""
        return self._first.finds(program)

    def check_workdir(self, workdir: str | None) -> None:
        """Raises SandboxError where it is known already that the kind cannot."""
        if isinstance(self._chosen, LooksAhead):
            self._chosen.check_workdir(workdir)

    async def _choose(self) -> SandboxProvider:
        try:
            await self._first.check()
        except SandboxError as error:
            _log.warning("sandboxes are local folders without isolation, since bubblewrap does not work: %s", error)
            return self._second
        return self._first

"""Progress on stderr: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_SHOWN = ("reward", "fresh_length", "served_length", "distill/kl", "cross_entropy/loss")
_EVERY_S = 10.0


class Bars:
    """One bar a stage, with the newest figures beside it."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = self._console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._printed = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._bars.stop()

    def update(self, stage: str, done: int, total: int, figures: Mapping[str, Any]) -> None:
        """Show that `done` of `total` of a stage are done."""
        shown = "  ".join(f"{name.split('/')[-1]} {figures[name]:.3g}" for name in _SHOWN if name in figures)
        if self._live:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=total, figures="")
            self._bars.update(self._tasks[stage], completed=done, total=total, figures=shown)
        elif done >= total or time.monotonic() - self._printed > _EVERY_S:
            self._printed = time.monotonic()
            print(f"{stage}: {done}/{total}  {shown}".rstrip(), file=sys.stderr, flush=True)

"""The figures of a run's steps, passed on to the trackers that a team already looks at.

A tracker is one function from a step and its figures to nothing, and one that closes it. What a run needs stays in its
own folder and in the store: a tracker that fails is named once and left out, and the run goes on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from practicum.config import Config
from practicum.errors import MissingExtra, UsageError

_log = logging.getLogger("practicum.live.trackers")

Log = Callable[[int, Mapping[str, float]], None]
Opened = tuple[Log, Callable[[], None]]


def _tensorboard(config: Config) -> Opened:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(config.home / "tensorboard"))

    def log(step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _wandb(config: Config) -> Opened:
    import wandb

    run = wandb.init(project="practicum", dir=str(config.home), config=config.model_dump(mode="json"))
    return (lambda step, figures: run.log(dict(figures), step=step)), run.finish


def _mlflow(config: Config) -> Opened:
    import mlflow

    mlflow.set_experiment("practicum")
    mlflow.start_run()
    mlflow.log_params({f"train.{name}": value for name, value in config.train.model_dump(mode="json").items()})
    return (lambda step, figures: mlflow.log_metrics(dict(figures), step=step)), mlflow.end_run


def _trackio(config: Config) -> Opened:
    import trackio

    trackio.init(project="practicum", config=config.model_dump(mode="json"))
    return (lambda step, figures: trackio.log(dict(figures), step=step)), trackio.finish


TRACKERS: Mapping[str, tuple[str, Callable[[Config], Opened]]] = {
    "tensorboard": ("tensorboardX", _tensorboard),
    "wandb": ("wandb", _wandb),
    "mlflow": ("mlflow", _mlflow),
    "trackio": ("trackio", _trackio),
}


class Trackers:
    """The trackers by name, for as long as the context is open. Raises UsageError, MissingExtra where one cannot be."""

    def __init__(
        self,
        names: Sequence[str],
        config: Config,
        *,
        table: Mapping[str, tuple[str, Callable[[Config], Opened]]] = TRACKERS,
    ) -> None:
        self._config = config
        self._table = table
        self._names = list(dict.fromkeys(names))
        self._opened: dict[str, Opened] = {}
        if unknown := [name for name in self._names if name not in table]:
            raise UsageError(f"There is no tracker {unknown[0]!r}.", hint=f"There are: {', '.join(table)}.")

    def __enter__(self) -> Self:
        for name in self._names:
            package, opened = self._table[name]
            try:
                self._opened[name] = opened(self._config)
            except ImportError as error:
                raise MissingExtra(
                    f"The tracker {name} needs the package {package}.", hint=f"pip install {package}"
                ) from error
        return self

    def __exit__(self, *raised: object) -> None:
        for name, (_, close) in list(self._opened.items()):
            self._safely(name, close)

    def update(self, stage: str, done: int, total: int, figures: Mapping[str, Any]) -> None:
        """A step's figures, if `stage` has any; see `types.training.Progress`."""
        known = {
            f"{stage}/{name}": float(value)
            for name, value in figures.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        }
        for name, (log, _) in list(self._opened.items() if known else ()):
            self._safely(name, partial(log, done, known))

    def _safely(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # whatever a tracker raises, the run is worth more
            _log.warning("the tracker %s failed and is left out from here on: %s", name, error)
            self._opened = {known: opened for known, opened in self._opened.items() if known != name}

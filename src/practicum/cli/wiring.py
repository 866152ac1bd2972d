"""Put the parts together: configuration, store, registry, model, engine. Heavy imports happen inside."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from practicum.capture.stalls import Stalls
    from practicum.config import Config
    from practicum.episodes.summary import HarnessSummary, LogprobGap
    from practicum.evals.graders import Grader
    from practicum.harnesses.service import RolloutService
    from practicum.live.workbench import Workbench
    from practicum.policies import Registry
    from practicum.renderers import Renderer
    from practicum.store import Store
    from practicum.types.calls import ModelCall
    from practicum.types.seams import Sampler

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file; default practicum.toml if present.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override one key: section.key=value. Repeatable.")]
HomeOption = Annotated[Path | None, typer.Option("--home", help="Folder for the store, policies and runs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def overrides(settings: list[str] | None, home: Path | None = None, **named: object) -> dict[str, str]:
    """Command-line options as dotted overrides; `named` uses `section__key`, None meaning not given."""
    from practicum.errors import ConfigError

    chosen: dict[str, str] = {}
    for setting in settings or []:
        key, found, value = setting.partition("=")
        if not found:
            raise ConfigError(f"--set {setting} has no value.", hint="Write --set section.key=value.")
        chosen[key.strip()] = value
    if home is not None:
        chosen["home"] = str(home)
    for name, given in named.items():
        if given is not None:
            chosen[name.replace("__", ".")] = str(given)
    return chosen


def settings(config: Path | None, chosen: dict[str, str]) -> Config:
    """The resolved configuration. What it names as `module:attribute` may lie beside its file."""
    from practicum.config import config_file, load_config

    resolved = load_config(config, chosen)
    file = config_file(config)
    if file is not None and (folder := str(file.absolute().parent)) not in sys.path:
        sys.path.append(folder)  # at the end: a module there never hides an installed one
    return resolved


def recipe(config: Path | None, chosen: dict[str, str]) -> Config:
    """The resolved configuration of a training run; the tasks that a recipe names may lie beside it."""
    resolved = settings(config, chosen)
    tasks = resolved.train.tasks
    if config is None or tasks is None or "train.tasks" in chosen or not (beside := config.parent / tasks).is_file():
        return resolved
    return resolved.model_copy(update={"train": resolved.train.model_copy(update={"tasks": beside})})


@contextmanager
def opened(config: Config) -> Iterator[tuple[Store, Registry]]:
    """The store and the registry of a home."""
    from practicum.policies import Registry
    from practicum.store import open_store

    with open_store(config.store_path) as store:
        yield store, Registry(store, config.policies_dir)


def is_scripted(model_id: str) -> bool:
    """Whether answers come from a script instead of a model."""
    return model_id == "scripted" or model_id.startswith("scripted:")


def model_folder(config: Config) -> Path:
    """The local folder of the configured model, made from the installed package the first time."""
    from practicum.engines.embedded.threads import configure_threads

    configure_threads(config.model.threads)  # before anything imports torch
    from practicum.engines.embedded import models

    return models.resolve(config.model.id, config.model.cache_path)


def renderer(config: Config) -> Renderer:
    """The renderer of the configured model."""
    from practicum.renderers import ByteTokenizer, HubTokenizer, Renderer

    if is_scripted(config.model.id):
        return Renderer(ByteTokenizer())
    folder = model_folder(config)
    return Renderer.from_folder(folder, HubTokenizer.from_folder(folder), family=config.model.parser)


def sampler(config: Config) -> Sampler:
    """The engine that serves."""
    if is_scripted(config.model.id):
        from practicum.engines.scripted import ScriptedSampler

        length = config.model.context_length
        return ScriptedSampler.from_spec(config.model.id, **({"context_length": length} if length else {}))
    folder = model_folder(config)
    from practicum.engines.embedded import models
    from practicum.engines.embedded.sampler import EmbeddedSampler
    from practicum.engines.embedded.settings import SamplerSettings
    from practicum.renderers import HubTokenizer

    model, _ = models.load(folder)
    settings = SamplerSettings(
        threads=config.model.threads or max(1, (os.cpu_count() or 2) // 2),  # the rest is for HTTP and the learner
        max_slots=config.model.max_batch,
        context_length=config.model.context_length,
    )
    return EmbeddedSampler(model, settings=settings, tokenizer=HubTokenizer.from_folder(folder))


def harness_summaries(config: Config, *, newest: int, recompute: bool) -> list[HarnessSummary]:
    """What became of the newest calls, by harness; with `recompute`, the engine scores their tokens again.

    A rollout's task knows better than the headers of its calls which harness it was.
    """
    import asyncio

    from practicum.episodes.summary import summarise

    with opened(config) as (store, registry):
        found = store.calls(limit=newest, newest_first=True)[::-1]
        known = store.session_harnesses({call.session_id for call in found})
        calls = [replace(call, harness=known.get(call.session_id, call.harness)) for call in found]
        return summarise(calls, asyncio.run(_gaps(config, registry, calls)) if recompute else None)


async def _gaps(config: Config, registry: Registry, calls: Sequence[ModelCall]) -> dict[str, LogprobGap]:
    """Raises UsageError where none of the calls was served by the configured model."""
    from practicum.episodes.summary import of_another_model, recomputed_gaps, versions_of
    from practicum.errors import UsageError

    others = of_another_model(calls, renderer(config))
    ours = [call for call in calls if call.call_id not in others]
    if calls and not ours:
        raise UsageError(
            f"These calls were not served by {config.model.id}: its tokenizer reads their tokens as other texts.",
            hint="Name the model that served them: `--model`, as in `serve --model`.",
        )
    if others:
        print(f"{len(others)} calls were served by another model and have no gap.", file=sys.stderr)
    engine = sampler(config)
    dropped: set[int] = set()
    try:
        for version in versions_of(ours):
            if registry.get(version).status == "dropped":
                dropped.add(version)
                continue
            policy = registry.verify(version)
            path = None if policy.adapter_path is None else Path(policy.adapter_path)
            await engine.load(version, path, policy.digest)
        return await recomputed_gaps(calls, engine, dropped, others)
    finally:
        if (close := getattr(engine, "close", None)) is not None:
            close()


def workbench(config: Config) -> Workbench:
    """The engine that learns."""
    from practicum.errors import UsageError

    if is_scripted(config.model.id):
        raise UsageError("A scripted model cannot learn.", hint="Set model.id to a real model.")
    folder = model_folder(config)
    from practicum.engines.embedded.workbench import EmbeddedWorkbench

    return EmbeddedWorkbench(folder, config.model, config.learn, steps_ahead=config.train.max_staleness)


def rollout_service(
    config: Config, store: Store, stalls: Stalls, *, tasks: Path | None = None
) -> partial[RolloutService]:
    """Makes the rollout service, once the gateway's address is known.

    Environments may lie beside the file `tasks`, whose author runs this process, or be installed; without it, only in
    the configured folder.
    """
    from practicum.cli import rollout_host
    from practicum.environments.places import Allowed

    allowed = None
    if tasks is not None:
        folder = config.rollouts.environments_folder
        allowed = Allowed(folders=(tasks.parent, *([folder] if folder else [])), modules=True)
    return partial(rollout_host.rollout_service, config, store, stalls, environments=allowed)


def graders(config: Config) -> Mapping[str, Grader]:
    """The team's graders, if it has some."""
    from practicum.evals.graders import load_graders

    return load_graders(config.evals.graders) if config.evals.graders is not None else {}


def lower_priority() -> None:
    """Give way to serving: the lowest scheduling priority, where the system has one."""
    if hasattr(os, "nice"):
        os.nice(15)

"""`practicum train`: group RL on tasks that can be repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from practicum.cli.wiring import ConfigOption, HomeOption, JsonOption, SetOption


def train(
    recipe: Annotated[
        Path | None, typer.Argument(help="TOML file with a section [train]; none takes practicum.toml.")
    ] = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    model: Annotated[str | None, typer.Option(help="Model: a name, a folder or a hub id.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Python file with lists TRAIN and HELDOUT of tasks.")] = None,
    as_json: JsonOption = False,
    sets: SetOption = None,
) -> None:
    """Learn by group RL from tasks that can be repeated and graded; resumes a run that was cut short."""
    from practicum.capture.stalls import Stalls
    from practicum.cli import wiring
    from practicum.cli.progress import Bars
    from practicum.errors import UsageError
    from practicum.gateway import create_app
    from practicum.live.prompts import PromptBook
    from practicum.live.syllabus import load_syllabus
    from practicum.live.trackers import Trackers
    from practicum.live.training import Training
    from practicum.live.workshop import Workshop

    if recipe is not None and config is not None:
        raise UsageError("A recipe is the configuration.", hint="Give either RECIPE or --config.")
    resolved = wiring.recipe(recipe or config, wiring.overrides(sets, home, model__id=model, train__tasks=tasks))
    chosen = resolved.train
    if chosen.tasks is None:
        raise UsageError("There are no tasks to learn from.", hint="Give a file with --tasks, or set train.tasks.")
    syllabus = load_syllabus(chosen.tasks)
    if chosen.gate and len(syllabus.heldout) < resolved.gate.min_cases:
        raise UsageError(
            f"HELDOUT has {len(syllabus.heldout)} tasks, and the gate decides over at least {resolved.gate.min_cases}.",
            hint="Hold more tasks out, set gate.min_cases, or set train.gate=false to want no decision.",
        )
    stalls = Stalls()
    with wiring.opened(resolved) as (store, registry), Bars() as bars, Trackers(chosen.trackers, resolved) as trackers:

        def progress(stage: str, done: int, total: int, figures: Mapping[str, Any]) -> None:
            bars.update(stage, done, total, figures)
            trackers.update(stage, done, total, figures)

        bench, renderer = wiring.workbench(resolved), wiring.renderer(resolved)
        app = create_app(resolved, store, registry, bench.sampler, renderer, stalls=stalls)
        service = wiring.rollout_service(resolved, store, stalls, tasks=chosen.tasks)
        with Workshop(app, resolved.server, service) as workshop:
            run_id, decision = Training(
                store=store,
                registry=registry,
                config=resolved,
                prompts=PromptBook(renderer, resolved.gateway.default_max_tokens),
                syllabus=syllabus,
                rollouts=workshop,
                workbench=lambda: bench,
                progress=progress,
            ).run()
        outputs = {step.step: step.output for step in store.run_steps(run_id)}
    verdict, reason = _end(outputs) if decision is None else (decision.verdict, decision.reason)
    if as_json:
        said = {"run_id": run_id, "verdict": verdict, "reason": reason, "decision": decision and asdict(decision)}
        print(json.dumps(said))
    else:
        version = f" version {decision.version}" if decision else ""
        print(f"{verdict}{version}: {reason}\nRun {run_id}. `practicum report` shows what it learned.")
    if verdict not in ("promote", "trained"):
        raise typer.Exit(3)


def compare(
    first: Annotated[str, typer.Argument(help="A run's id.")],
    second: Annotated[str, typer.Argument(help="Another one's.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
    sets: SetOption = None,
) -> None:
    """Two training runs beside each other: what differs in their settings, their curves, and what they came to."""
    from practicum.cli import wiring
    from practicum.dashboard.compare import compared, print_compared

    with wiring.opened(wiring.settings(None, wiring.overrides(sets, home))) as (store, _):
        found = compared(store, first, second)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        print_compared(found)


def _end(outputs: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """What came of a run without a decision."""
    if "stopped" in outputs:
        return "stopped", str(outputs["stopped"]["reason"])
    figures, version = outputs["evaluate"]["figures"], outputs["register"]["version"]
    before, after = figures["reward_before"], figures["reward_after"]
    return "trained", (
        f"mean reward on {figures['heldout_cases']} held-out tasks {before:.3f} -> {after:.3f}; "
        f"version {version} is a candidate, and nothing went live"
    )

"""`practicum intern`: learn from graded rollouts of a black-box harness."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from practicum.cli.wiring import ConfigOption, HomeOption, JsonOption, SetOption


def intern(
    config: ConfigOption = None,
    home: HomeOption = None,
    model: Annotated[str | None, typer.Option(help="Model: a name, a folder or a hub id.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Python file with lists TRAIN and HELDOUT of tasks.")] = None,
    as_json: JsonOption = False,
    sets: SetOption = None,
) -> None:
    """Learn by GRPO from tasks that a harness you do not own works on; resumes a run that was cut short."""
    from practicum.capture.stalls import Stalls
    from practicum.cli import wiring
    from practicum.cli.progress import Bars
    from practicum.errors import UsageError
    from practicum.gateway import create_app
    from practicum.live.internship import Internship, load_syllabus
    from practicum.live.prompts import PromptBook
    from practicum.live.workshop import Workshop

    resolved = wiring.settings(config, wiring.overrides(sets, home, model__id=model, intern__tasks=tasks))
    if resolved.intern.tasks is None:
        raise UsageError("There are no tasks to learn from.", hint="Give a file with --tasks, or set intern.tasks.")
    syllabus = load_syllabus(resolved.intern.tasks)
    if len(syllabus.heldout) < resolved.gate.min_cases:
        raise UsageError(
            f"HELDOUT has {len(syllabus.heldout)} tasks, and the gate decides over at least {resolved.gate.min_cases}.",
            hint="Hold more tasks out, or set gate.min_cases.",
        )
    stalls = Stalls()
    with wiring.opened(resolved) as (store, registry), Bars() as bars:
        bench, renderer = wiring.workbench(resolved), wiring.renderer(resolved)
        app = create_app(resolved, store, registry, bench.sampler, renderer, stalls=stalls)
        service = wiring.rollout_service(resolved, store, stalls, tasks=resolved.intern.tasks)
        with Workshop(app, resolved.server, service) as workshop:
            run_id, decision = Internship(
                store=store,
                registry=registry,
                config=resolved,
                prompts=PromptBook(renderer, resolved.gateway.default_max_tokens),
                syllabus=syllabus,
                rollouts=workshop,
                workbench=lambda: bench,
                progress=bars.update,
            ).run()
        stopped = next((s.output["reason"] for s in store.run_steps(run_id) if s.step == "stopped"), "")
    verdict, reason = (decision.verdict, decision.reason) if decision else ("stopped", stopped)
    if as_json:
        said = {"run_id": run_id, "verdict": verdict, "reason": reason, "decision": decision and asdict(decision)}
        print(json.dumps(said))
    else:
        version = f" version {decision.version}" if decision else ""
        print(f"{verdict}{version}: {reason}\nRun {run_id}. `practicum report` shows what it learned.")
    if verdict != "promote":
        raise typer.Exit(3)

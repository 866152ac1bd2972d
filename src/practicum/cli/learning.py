"""`practicum learn | report | release | demo`: one learning run, what it did, who is live, and the tour."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from practicum.cli.wiring import ConfigOption, HomeOption, JsonOption, SetOption
from practicum.types.policies import DecisionVerdict

release = typer.Typer(help="Who is live, who could be, and why.", no_args_is_help=True)


def learn(
    config: ConfigOption = None,
    home: HomeOption = None,
    model: Annotated[str | None, typer.Option(help="Model: a name, a folder or a hub id.")] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Lowest priority, one thread: beside serving.")
    ] = False,
    as_json: JsonOption = False,
    sets: SetOption = None,
) -> None:
    """Learn once from the feedback since the last release; resumes a run that was cut short."""
    from practicum.cli import wiring
    from practicum.cli.progress import Bars
    from practicum.live.loop import Loop
    from practicum.live.prompts import PromptBook

    threads = 1 if background else None
    resolved = wiring.settings(config, wiring.overrides(sets, home, model__id=model, model__threads=threads))
    if background:
        wiring.lower_priority()
    with wiring.opened(resolved) as (store, registry), Bars() as bars:
        loop = Loop(
            store=store,
            registry=registry,
            config=resolved,
            prompts=PromptBook(wiring.renderer(resolved), resolved.gateway.default_max_tokens),
            graders=wiring.graders(resolved),
            workbench=lambda: wiring.workbench(resolved),
            progress=bars.update,
        )
        run_id, decision = loop.run()
        stopped = next((s.output["reason"] for s in store.run_steps(run_id) if s.step == "stopped"), "")
    verdict = decision.verdict if decision else "stopped"
    reason = decision.reason if decision else stopped
    if as_json:
        print(
            json.dumps(
                {"run_id": run_id, "verdict": verdict, "reason": reason, "decision": decision and asdict(decision)}
            )
        )
    else:
        version = f" version {decision.version}" if decision else ""
        print(f"{verdict}{version}: {reason}\nRun {run_id}. `practicum report` shows what it learned.")
    if verdict != "promote":
        raise typer.Exit(3)


def report(
    run: Annotated[str | None, typer.Argument(help="Run id; default the newest.")] = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    html: Annotated[Path | None, typer.Option(help="Also write one self-contained page here.")] = None,
    harness: Annotated[
        bool, typer.Option("--harness", help="What became of each harness's calls instead: episodes, rows, forks.")
    ] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="With --harness: ask the engine for the logprobs again.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="With --recompute: the model that served, as `serve` names it.")
    ] = None,
    newest: Annotated[int, typer.Option(min=1, help="With --harness: look at so many of the newest calls.")] = 20_000,
    as_json: JsonOption = False,
) -> None:
    """What was asked for, what changed, and why it was released or refused."""
    from practicum.cli import wiring
    from practicum.dashboard import build, harnesses_json, render_json, show, show_harnesses, write_html

    resolved = wiring.settings(config, wiring.overrides(None, home, model__id=model))
    if harness:
        found = wiring.harness_summaries(resolved, newest=newest, recompute=recompute)
        if as_json:
            print(harnesses_json(found))
        else:
            show_harnesses(found)
        return
    with wiring.opened(resolved) as (store, registry):
        told = build(store, registry, run)
        if as_json:
            print(render_json(told))
        else:
            show(told)
        page = write_html(told, html or resolved.runs_dir / told.run_id / "report.html")
        print(f"Page: {page}", file=sys.stderr)


@release.command("list")
def list_versions(config: ConfigOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Every policy version, its state, and the newest decision about it."""
    from practicum.cli import wiring

    with wiring.opened(wiring.settings(config, wiring.overrides(None, home))) as (_, registry):
        versions, decisions = registry.list(), registry.decisions()
    newest = {decision.version: decision for decision in decisions}
    if as_json:
        print(
            json.dumps(
                [asdict(v) | {"decision": asdict(newest[v.version]) if v.version in newest else None} for v in versions]
            )
        )
        return
    for known in versions:
        why = newest[known.version].reason if known.version in newest else known.note or "no decision yet"
        print(f"{'*' if known.status == 'live' else ' '} {known.version:>4}  {known.status:<10} {why}")


@release.command("promote")
def promote(
    version: int,
    reason: Annotated[str, typer.Option(help="Why the gate's word does not hold; it is recorded.")],
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Promote a candidate by hand, with a recorded reason. Refused versions stay refused."""
    _decide("promote", version, reason, config, home)


@release.command("rollback")
def rollback(
    version: Annotated[int | None, typer.Argument(help="Where to; default the version before the live one.")] = None,
    reason: Annotated[str, typer.Option(help="Recorded with the decision.")] = "rolled back by hand",
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Make an earlier released version live again: a pointer move, picked up by a running server."""
    _decide("rollback", version, reason, config, home)


def _decide(verdict: DecisionVerdict, version: int | None, reason: str, config: Path | None, home: Path | None) -> None:
    from practicum.cli import wiring
    from practicum.release.manual import by_hand

    with wiring.opened(wiring.settings(config, wiring.overrides(None, home))) as (_, registry):
        live = registry.apply_decision(by_hand(registry, verdict, version, reason))
    print(f"Version {live.version} is live.")


def demo(
    keep_serving: Annotated[bool, typer.Option("--keep-serving", help="Leave the server up afterwards.")] = False,
    short: Annotated[
        bool, typer.Option("--short", help="Fewer messages; for a quick check that all parts work.")
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder for the figures and the report.")] = Path("results"),
) -> None:
    """The tour: an unmodified help desk agent learns the house style from what people say about its answers."""
    from practicum.cli.tour import run_recipe

    options = [*(["--keep-serving"] if keep_serving else []), *(["--short"] if short else [])]
    raise typer.Exit(run_recipe("4_agentic_citizen/helpdesk/demo.py", [*options, "--results", str(results)]))

"""`practicum rollout submit | status | collect | continue | cancel | show | secret`: rollouts from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from practicum.cli.wiring import ConfigOption, HomeOption, JsonOption

rollout = typer.Typer(
    help="Rollouts of a task, run by a server (PRACTICUM_BASE_URL, PRACTICUM_API_KEY).", no_args_is_help=True
)

_FORM = "Give a file with one JSON object."
GroupArgument = Annotated[str, typer.Argument(help="Id that `submit` printed.")]


@rollout.command("submit")
def submit(
    file: Annotated[Path, typer.Argument(help="JSON file with one task, or `-`.")],
    key: Annotated[
        str | None,
        typer.Option(help="Submission key: the same one gives the same group. The file may have it instead."),
    ] = None,
) -> None:
    """Submit a task; prints the group's id."""
    from practicum.client import Client

    with Client() as client:
        print(client.submit_rollouts(_task(file), submission_key=key)["group_id"])


@rollout.command("status")
def status(group_id: GroupArgument) -> None:
    """How a group stands, as JSON."""
    from practicum.client import Client

    with Client() as client:
        print(json.dumps(client.rollouts(group_id)))


@rollout.command("collect")
def collect(group_id: GroupArgument) -> None:
    """Each result as its rollout ends, one JSON object a line."""
    from practicum.client import Client

    with Client() as client:
        for result in client.rollout_results(group_id):
            print(json.dumps(result), flush=True)


@rollout.command("continue")
def go_on(
    group_id: GroupArgument,
    rollout_id: Annotated[str, typer.Argument(help="Which rollout of it; `status` shows those that are `open`.")],
    instruction: Annotated[str | None, typer.Argument(help="What it is to do next.")] = None,
    turn: Annotated[
        int | None,
        typer.Option(min=0, help="The instruction's number from 0, so that it is given once; default the next."),
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Give none: let it go on to its grading.")] = False,
) -> None:
    """Give a rollout that is kept open a further instruction, or let it end."""
    from practicum.client import Client
    from practicum.errors import NotFound, UsageError

    if (instruction is None) != end:
        raise UsageError("Nothing says how the rollout goes on.", hint="Give either an instruction or --end.")
    with Client() as client:
        if instruction is None:
            print(json.dumps(client.end_rollout(group_id, rollout_id)))
            return
        known = {one["rollout_id"]: len(one["instructions"]) for one in client.rollouts(group_id)["rollouts"]}
        if rollout_id not in known:
            raise NotFound(
                f"There is no rollout {rollout_id!r} in this group.", hint="`practicum rollout status` lists them."
            )
        number = known[rollout_id] if turn is None else turn
        print(json.dumps(client.continue_rollout(group_id, rollout_id, instruction, number)))


@rollout.command("cancel")
def cancel(
    group_id: GroupArgument,
    only: Annotated[str | None, typer.Option("--rollout", help="Only this rollout of the group.")] = None,
) -> None:
    """Call a group off, or one rollout of it."""
    from practicum.client import Client

    with Client() as client:
        print(json.dumps(client.cancel_rollouts(group_id, only)["counts"]))


@rollout.command("show")
def show(
    rollout_id: Annotated[str, typer.Argument(help="Id of a rollout; of a group: one line for each rollout of it.")],
    attempt: Annotated[int | None, typer.Option(help="An earlier attempt; the last one by default.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Cut no text.")] = False,
    config: ConfigOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """One rollout for people: turns, tool calls, reward and its reason, tokens and versions, and what trains."""
    from practicum.cli import wiring
    from practicum.dashboard import rollout as views

    with wiring.opened(wiring.settings(config, wiring.overrides(None, home))) as (store, _):
        if rollout_id.startswith("group_"):
            views.show_group(store.get_group(rollout_id))
            return
        found = store.get_rollout(rollout_id)
        view = views.rollout_view(found, store.calls(views.session_of(found, attempt)))
    if as_json:
        print(views.rollout_json(view))
    else:
        views.show_rollout(view, whole=full)


@rollout.command("secret")
def secret(config: ConfigOption = None, home: HomeOption = None) -> None:
    """The secret that signs this home's callbacks."""
    from practicum.cli import wiring
    from practicum.harnesses.callbacks import callback_secret

    with wiring.opened(wiring.settings(config, wiring.overrides(None, home))) as (store, _):
        print(callback_secret(store.key_secret))


def _task(file: Path) -> dict[str, Any]:
    from practicum.errors import UsageError

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        task = json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The task {file} cannot be read: {error}.", hint="Give a file with one JSON object."
        ) from error
    if not isinstance(task, dict):
        raise UsageError(f"The task {file} is no JSON object.", hint=_FORM)
    return task

"""`practicum`: the verbs, and how errors become an exit status.

0 done, 1 failed, 2 wrong use, 3 the gate refused. Data goes to stdout, progress and errors to stderr. Nothing heavy is
imported before a verb needs it, so `practicum --help` is quick.
"""

from __future__ import annotations

import sys

import typer

from practicum import __version__
from practicum.cli import admin, learning, rollouts, serving, training
from practicum.errors import PracticumError, UsageError

app = typer.Typer(
    name="practicum",
    help="An AI agent learns on the job: serve it, take feedback, learn, prove it, swap it in.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("serve")(serving.serve)
app.command("learn")(learning.learn)
app.command("train")(training.train)
app.command("compare")(training.compare)
app.command("report")(learning.report)
app.command("demo")(learning.demo)
app.add_typer(learning.release, name="release")
app.command("model")(admin.model)
app.add_typer(rollouts.rollout, name="rollout")
app.add_typer(admin.keys, name="keys")
app.add_typer(admin.feedback, name="feedback")
app.add_typer(admin.config, name="config")


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        print(__version__)
        raise typer.Exit()


def main() -> None:
    """Run the command line; the entry point of the package."""
    try:
        app()
    except PracticumError as error:
        print(f"practicum: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)

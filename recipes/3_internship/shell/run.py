"""mini-swe-agent, as it is installed, on its first days: `make internship`.

All that happens here happens through public doors: `practicum train` runs the agent in sandboxes, learns from what its
rollouts came to, and lets the gate decide; `practicum report --harness` says what became of the calls.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
CONFIG = HERE / "internship.toml"
PRACTICUM = [sys.executable, "-m", "practicum"]
HARNESS = "mini-swe-agent"
_REFUSED = 3
_STEP = ("reward", "heldout_reward", "with_signal", "trained_tokens", "sample_s", "train_s")
console = Console()


def main() -> None:
    """Run the internship in a home of its own, print its figures, and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".practicum/internship"), help="Begun anew in every run.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="Folder for the figures.")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="section.key=value, as elsewhere.")
    parser.add_argument("--show", action="store_true", help="Run nothing: the figures of the run that is in the home.")
    chosen = parser.parse_args()
    options = ["--home", str(chosen.home)]
    if not chosen.show:
        if shutil.which("mini") is None:
            raise SystemExit(f"{HARNESS} is not installed here; `make internship` installs it and puts it on the PATH.")
        shutil.rmtree(chosen.home, ignore_errors=True)
        _output(
            ["train", str(CONFIG), "--json", *options, *(part for value in chosen.sets for part in ("--set", value))]
        )
    report = json.loads(_output(["report", "--json", *options]))
    calls = json.loads(_output(["report", "--harness", "--recompute", "--json", *options]))
    figures = _figures(report, calls)
    _show(figures)
    chosen.results.mkdir(parents=True, exist_ok=True)
    (chosen.results / "internship_shell.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _output(arguments: list[str]) -> str:
    """What a command prints on stdout; its progress is shown as it comes. A refused candidate is no failure."""
    done = subprocess.run([*PRACTICUM, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, _REFUSED):
        raise SystemExit(done.returncode)
    return done.stdout


def _figures(report: dict[str, Any], calls: Any) -> dict[str, Any]:
    return {
        "command": "make internship",
        "setting": {
            "python": platform.python_version(),
            "torch": installed("torch"),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "model": report["model"],
        },
        "wall_s": round(report["updated_at"] - report["created_at"], 1),
        "verdict": report["state"],
        "reason": report["reason"],
        "held_out": report["rates"],
        "measures": {name: value for name, value in report["measures"].items() if value is not None},
        "checks": report["checks"],
        "work": report["work"],
        "largest_mean_logprob_gap": max((step.get("logprob_gap", 0.0) for step in report["log"]), default=None),
        "steps": [{name: step.get(name) for name in _STEP} for step in report["log"]],
        "calls": calls,
    }


def _show(figures: dict[str, Any]) -> None:
    table = Table("step", "reward", "held out", "rollouts s", "training s", title=f"{HARNESS}: what each step did")
    for index, step in enumerate(figures["steps"]):
        cells = (step[name] for name in ("reward", "heldout_reward", "sample_s", "train_s"))
        table.add_row(str(index), *("" if cell is None else f"{cell:.2f}" for cell in cells))
    console.print(table)
    for rate in figures["held_out"]:
        for when in ("before", "after"):
            found = rate[when]
            spread = f"95% interval {found['low']:.0%} to {found['high']:.0%}, {found['n']} rollouts"
            console.print(f"held-out tasks, {rate['name']}, {when}: {found['estimate']:.0%} ({spread})")
    console.print(f"{figures['verdict']}: {figures['reason']} ({figures['wall_s'] / 60:.1f} minutes in all)")


if __name__ == "__main__":
    main()

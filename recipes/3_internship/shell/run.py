"""mini-swe-agent, as it is installed, on its first days: `make internship`.

All that happens here happens through public doors: `practicum intern` runs the agent in sandboxes, learns from what its
rollouts came to, and lets the gate decide; `practicum report --harness` says what became of the calls.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import time
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
console = Console()


def main() -> None:
    """Run the internship in a home of its own, print its figures, and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".practicum/internship"), help="Begun anew in every run.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="Folder for the figures.")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="section.key=value, as elsewhere.")
    chosen = parser.parse_args()
    if shutil.which("mini") is None:
        raise SystemExit(f"{HARNESS} is not installed here. `make internship` installs it and puts it on the PATH.")
    shutil.rmtree(chosen.home, ignore_errors=True)
    options = ["--home", str(chosen.home), "--config", str(CONFIG)]
    options += [part for value in chosen.sets for part in ("--set", value)]
    began = time.monotonic()
    told = _output(["intern", "--json", *options])
    wall_s = time.monotonic() - began
    ended = json.loads(told)
    log = chosen.home / "runs" / ended["run_id"] / "training" / "steps.jsonl"
    steps = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    calls = json.loads(_output(["report", "--harness", "--json", *options[:4]]))
    figures = _figures(ended, steps, calls) | {"wall_s": round(wall_s, 1)}
    _show(figures)
    chosen.results.mkdir(parents=True, exist_ok=True)
    (chosen.results / "internship_shell.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _output(arguments: list[str]) -> str:
    """What a command prints on stdout; its progress is shown as it comes. A refused candidate is no failure."""
    done = subprocess.run([*PRACTICUM, *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, _REFUSED):
        raise SystemExit(done.returncode)
    return done.stdout


def _figures(ended: dict[str, Any], steps: list[dict[str, Any]], calls: Any) -> dict[str, Any]:
    decision = ended["decision"] or {}
    gate = decision.get("figures", {})
    return {
        "command": " ".join(["python", "recipes/3_internship/shell/run.py", *sys.argv[1:]]),
        "setting": {
            "python": platform.python_version(),
            "torch": installed("torch"),
            "machine": platform.machine(),
        },
        "verdict": ended["verdict"],
        "reason": ended["reason"],
        "held_out": {name: gate.get(name) for name in ("rates", "reward_before", "reward_after", "heldout_cases")},
        "general": {name: gate.get(name) for name in ("regression_before", "regression_after", "kl_general")},
        "gate_s": gate.get("gate_s"),
        "largest_mean_logprob_gap": max((step.get("logprob_gap", 0.0) for step in steps), default=None),
        "steps": [
            {
                name: step.get(name)
                for name in ("reward", "heldout_reward", "with_signal", "trained_tokens", "sample_s", "train_s")
            }
            for step in steps
        ],
        "calls": calls,
    }


def _show(figures: dict[str, Any]) -> None:
    table = Table("step", "reward", "held out", "rollouts s", "training s", title=f"{HARNESS}: what each step did")
    for index, step in enumerate(figures["steps"]):
        cells = (step[name] for name in ("reward", "heldout_reward", "sample_s", "train_s"))
        table.add_row(str(index), *("" if cell is None else f"{cell:.2f}" for cell in cells))
    console.print(table)
    rates = (figures["held_out"]["rates"] or {}).get("all", {})
    for when in ("before", "after"):
        if found := rates.get(when):
            spread = f"95% interval {found['low']:.0%} to {found['high']:.0%}, {found['n']} rollouts"
            console.print(f"held-out tasks solved {when}: {found['estimate']:.0%} ({spread})")
    console.print(f"{figures['verdict']}: {figures['reason']} ({figures['wall_s'] / 60:.1f} minutes in all)")


if __name__ == "__main__":
    main()

"""Learning curves of a folder of recipes, several seeds each: `python recipes/curves.py recipes/1_baby_steps`.

Each recipe (a TOML file) is run by `practicum train` in a home of its own, once a seed; the figures go to
`results/NAME.json`. `--tiny` runs two small steps of each, to see that it works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PRACTICUM = [sys.executable, "-m", "practicum"]
TINY = ("train.steps=2", "train.groups=2", "train.samples=2", "train.eval_every=0", "gate.min_cases=1")
_REFUSED = 3
_STEP = ("step", "reward", "heldout_reward", "heldout_low", "heldout_high", "with_signal", "sample_s", "train_s")
console = Console(stderr=True)


def main() -> None:
    """Run every recipe of a folder with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="A folder of recipes; or one recipe.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], help="A recipe's name; repeatable.")
    parser.add_argument("--jobs", type=int, default=1, help="Runs side by side, each with its share of the cores.")
    parser.add_argument("--home", type=Path, default=Path(".practicum/recipes"), help="Begun anew in every run.")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--set", dest="sets", action="append", default=[], help="section.key=value, as elsewhere.")
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    found = [chosen.folder] if chosen.folder.is_file() else sorted(chosen.folder.glob("**/*.toml"))
    recipes = [path for path in found if not chosen.only or path.stem in chosen.only]
    seeds = [0] if chosen.tiny else list(range(chosen.seeds))
    threads = max(1, (os.cpu_count() or 1) // chosen.jobs)
    sets = [f"model.threads={threads}", *(TINY if chosen.tiny else ()), *chosen.sets]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        runs = {path.stem: [pool.submit(_run, path, seed, chosen.home, sets) for seed in seeds] for path in recipes}
        figures = {name: _summary([run.result() for run in started]) for name, started in runs.items()}
    _show(figures)
    if chosen.tiny:
        return
    chosen.results.mkdir(parents=True, exist_ok=True)
    folder = chosen.folder if chosen.folder.is_dir() else chosen.folder.parent
    out = chosen.results / f"{folder.name.partition('_')[2] or folder.name}.json"
    known = json.loads(out.read_text("utf-8"))["recipes"] if chosen.only and out.is_file() else {}
    setting = {
        "python": platform.python_version(),
        "torch": installed("torch"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "runs_side_by_side": chosen.jobs,
    }
    command = " ".join(["python", "recipes/curves.py", *sys.argv[1:]])
    out.write_text(json.dumps({"command": command, "setting": setting, "recipes": known | figures}, indent=2) + "\n")


def _run(recipe: Path, seed: int, homes: Path, sets: list[str]) -> dict[str, Any]:
    """One run; its report. A refused candidate is no failure."""
    home = homes / f"{recipe.parent.name}-{recipe.stem}-{seed}"
    shutil.rmtree(home, ignore_errors=True)
    options = ["--home", str(home)]
    changed = [part for value in [f"learn.seed={seed}", *sets] for part in ("--set", value)]
    log = home.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as err:
        done = subprocess.run([*PRACTICUM, "train", str(recipe), *options, *changed], stdout=err, stderr=err)
        if done.returncode not in (0, _REFUSED):
            raise SystemExit(f"{recipe} with seed {seed} failed:\n{log.read_text()[-2000:]}")
    report = json.loads(
        subprocess.run([*PRACTICUM, "report", "--json", *options], capture_output=True, text=True, check=True).stdout
    )
    console.print(f"{recipe.stem}, seed {seed}: {report['verdict']}")
    return {"seed": seed, **report}


def _summary(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds that came to a version, with the standard error over them, and each seed's own curve."""
    ended = [report["measures"] for report in reports if report["measures"].get("reward_after") is not None]
    before, after = ([measures[f"reward_{when}"] for measures in ended] for when in ("before", "after"))
    return {
        "seeds": len(reports),
        "stopped": len(reports) - len(ended),  # without a version: their means are not in what follows
        "heldout_before": _mean(before),
        "heldout_after": _mean(after),
        "minutes": _mean([(report["updated_at"] - report["created_at"]) / 60 for report in reports]),
        "runs": [
            {
                "seed": report["seed"],
                "state": report["state"],
                "reason": report["reason"],
                "heldout_before": report["measures"].get("reward_before"),
                "heldout_after": report["measures"].get("reward_after"),
                "heldout_tasks": report["measures"].get("heldout_cases"),
                "rates": report["rates"],
                "work": report["work"],
                "curve": [{name: step[name] for name in _STEP if name in step} for step in report["log"]],
            }
            for report in reports
        ],
    }


def _mean(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    found = {"mean": statistics.fmean(values), "least": min(values), "most": max(values)}
    return found if math.isnan(spread) else found | {"standard_error": spread}


def _show(figures: dict[str, Any]) -> None:
    table = Table("recipe", "seeds", "stopped", "held out before", "after", "least", "most", "minutes")
    for name, found in figures.items():
        before, after = found["heldout_before"], found["heldout_after"]
        cells = (before.get("mean"), *(after.get(each) for each in ("mean", "least", "most")))
        shown = ("-" if cell is None else f"{cell:.3f}" for cell in cells)
        minutes = f"{found['minutes']['mean']:.1f}"
        table.add_row(name, str(found["seeds"]), str(found["stopped"]), *shown, minutes)
    Console().print(table)


if __name__ == "__main__":
    main()

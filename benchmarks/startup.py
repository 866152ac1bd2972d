"""How long `practicum --help` takes, and what it imports: the median of ten runs; the goal is below 300 ms.

python benchmarks/startup.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.serving import PRACTICUM, write_results

GOAL_S = 0.3
HEAVY = ("torch", "transformers", "peft", "fastapi", "starlette", "uvicorn", "numpy", "scipy", "httpx")


def help_s() -> float:
    """Wall seconds of one `practicum --help`."""
    began = time.perf_counter()
    subprocess.run([*PRACTICUM, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def imported(statement: str) -> list[str]:
    """Top-level packages that are loaded once `statement` has run in a fresh interpreter."""
    show = "import sys, json; print('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    code = f"try:\n    {statement}\nexcept SystemExit:\n    pass\n{show}"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


HELP = "import sys; sys.argv = ['practicum', '--help']; from practicum.cli.main import main; main()"
GATEWAY = "import practicum.gateway"


def measure(runs: int = 10) -> dict[str, Any]:
    help_s()  # the disk's cache is filled
    seconds = [help_s() for _ in range(runs)]
    return {
        "help_s": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "runs": runs},
        "goal_s": GOAL_S,
        "heavy_imports_of_help": [name for name in imported(HELP) if name in HEAVY],
        "heavy_imports_of_the_gateway": [name for name in imported(GATEWAY) if name in HEAVY],
    }


if __name__ == "__main__":
    found = measure()
    print(json.dumps(found, indent=2))
    print(write_results("startup", found))

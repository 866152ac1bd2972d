"""Run the real, installed harnesses headless against a served gateway, one after another, and report on each.

    python -m tests.matrix [--ci] [--only NAME,…] [--cache FOLDER] [--json FILE]

The model is scripted: it calls the harness's own shell or write tool to write a file, then says so. A harness passes
when the file is there in both turns, every call was answered, no sampled token was tokenised again, and its calls
became the rows that they should. The exit status is 1 if one does not pass.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import PracticumError
from practicum.harnesses.harness import Endpoint, HarnessJob
from practicum.harnesses.registry import harness
from practicum.store import open_store
from practicum.store.store import Store
from tests.local_sandbox import local_sandbox
from tests.matrix.cases import CASES, Case
from tests.matrix.installs import Installs
from tests.matrix.report import session_report

ROOT = Path(__file__).parents[2]
MODEL = "scripted:write:hello.txt=hi"
TIMEOUT_S = 180.0
INSTRUCTIONS = (
    "- Create a file hello.txt in the working folder that contains hi, and nothing else.",
    "The file was removed. Create it once more.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    url: str
    key: str
    store: Store


def main() -> int:
    options = _options()
    chosen = [case for case in CASES if (case.ci or not options.ci) and (not options.only or case.name in options.only)]
    installs = Installs(options.cache)
    with tempfile.TemporaryDirectory() as home, served(Path(home)) as gateway:
        rows = [asyncio.run(run_case(case, installs, gateway)) for case in chosen]
    for row in rows:
        print(line_of(row))
        for fault in row["faults"]:
            print(f"    {fault}")
    if options.json:
        facts = {"command": "make matrix", "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
                 "python": platform.python_version(), "model": MODEL, "harnesses": rows}  # fmt: skip
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if any(row["faults"] for row in rows) else 0


@contextmanager
def served(home: Path) -> Iterator[Gateway]:
    """`practicum serve` in a process of its own on a free port."""
    command = [sys.executable, "-m", "practicum", "serve", "--home", str(home), "--model", MODEL, "--port", "0"]
    for setting in ("model.context_length=2000000", "gateway.default_max_tokens=4096"):
        command += ["--set", setting]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        key = url = ""
        for line in server.stderr:
            if line.startswith("Your key"):
                key = line.split()[-1]
            if line.startswith("Serving"):
                url = line.split()[-1].removesuffix("/v1")
                break
        log = home / "server.log"
        pump = subprocess.Popen(["cat"], stdin=server.stderr, stdout=log.open("wb"))
        try:
            with open_store(home / "practicum.db") as store:
                yield Gateway(url=url, key=key, store=store)
        finally:
            server.terminate()
            server.wait(20)
            pump.wait(20)
            sys.stderr.write(log.read_text()[-4000:])


async def run_case(case: Case, installs: Installs, gateway: Gateway) -> dict[str, Any]:
    """Install, run both turns, and say what became of it."""
    rollout_id = "matrix-" + "".join(letter for letter in case.name if letter.isalnum())
    row: dict[str, Any] = {"name": case.name, "adapter": case.adapter, "wire": case.wire, "packages": case.packages}
    path = installs.path(case)
    env = {"PATH": ":".join(map(str, [*path, os.environ["PATH"]])), **case.env}
    endpoint = Endpoint(base_url=f"{gateway.url}/s/{rollout_id}", api_key=gateway.key, model="practicum")
    faults: list[str] = []
    seconds, ends = [], []
    async with local_sandbox() as sandbox:
        adapter = harness(case.adapter)
        for turn, instruction in enumerate(INSTRUCTIONS):
            (Path(sandbox.workdir) / "hello.txt").unlink(missing_ok=True)
            job = HarnessJob(
                rollout_id=rollout_id, instruction=instruction, endpoint=endpoint, turn=turn, timeout_s=TIMEOUT_S,
                env=env, options=case.options,
            )  # fmt: skip
            begun = time.monotonic()
            try:
                ends.append(await adapter.collect(await adapter.submit(job, sandbox)))
            except PracticumError as error:
                faults.append(f"turn {turn}: {error}")
                break
            seconds.append(round(time.monotonic() - begun, 1))
            if await _written(sandbox) != "hi\n":
                faults.append(f"turn {turn}: hello.txt was not written. {ends[-1].log[-1500:]}")
            if ends[-1].error:
                faults.append(f"turn {turn}: {ends[-1].error}. {ends[-1].log[-1500:]}")
    row |= {"seconds": seconds, "file_written": not faults, "answers": [end.output[:200] for end in ends]}
    figures = session_report(gateway.store.calls(session_id=rollout_id))
    return row | figures | {"faults": faults + wrong(case, figures)}


def wrong(case: Case, figures: dict[str, Any]) -> list[str]:
    """What of the figures is not as it should be."""
    faults = [f"a call was not answered: {one}" for one in figures["unfinished"]]
    if figures["retokenised"]:
        faults.append(f"{figures['retokenised']} sampled tokens were tokenised again")
    if figures["rows"] != case.rows:
        faults.append(f"{figures['rows']} rows instead of {case.rows}: {figures['fork_reasons']}")
    faults += [f"a side call counts as the agent's own: {one}" for one in figures["without_tools"]]
    return faults


async def _written(sandbox: Any) -> str:
    try:
        return str(await sandbox.read("hello.txt"))
    except PracticumError:
        return ""


def line_of(row: dict[str, Any]) -> str:
    """One line a harness."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in row["by_kind"].items())
    return (
        f"{'FAIL' if row['faults'] else 'ok  '} {row['name']:<16} {'+'.join(map(str, row['seconds'])):>10} s  "
        f"{row['calls']} calls ({kinds}), {row['episodes']} episodes, {row['rows']} rows, "
        f"merge {row['merge_ratio']}, forks {row['fork_reasons']}, retokenised {row['retokenised']}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--ci", action="store_true", help="only those that are small and quick")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names, with commas between")
    parser.add_argument("--cache", type=Path, default=ROOT / ".practicum" / "harnesses", help="folder of installs")
    parser.add_argument("--json", type=Path, help="write the report here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

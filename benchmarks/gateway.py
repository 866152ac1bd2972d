"""How fast is the gateway? Practicum with durable capture, beside the bare server (the limit) and LiteLLM's proxy.

    python benchmarks/gateway.py [--quick] [--litellm FOLDER]

One run, one load generator, over loopback, with nothing behind the servers that takes time: the bare server answers a
constant, Practicum samples from a constant, LiteLLM's upstream is the bare server. The rounds of all targets are
interleaved, and medians of the rounds are compared, so that a machine others use too is unfair to all alike. Servers
are pinned to one core and the generator to another. Processor time per request is the figure that noise disturbs least.

LiteLLM has an environment of its own, FOLDER, and is left out where there is none:

    python -m venv .practicum/litellm && .practicum/litellm/bin/pip install 'litellm[proxy]==1.110.2'
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.serving import write_results

from practicum.store import create_key, open_store

HERE = Path(__file__).resolve().parent
LITELLM = Path(".practicum/litellm")
CONNECTIONS = 64
RATE = 200
STREAMS, PACE_MS, TOKENS = 50, 20, 60
MANY, MANY_PACE_MS, MANY_TOKENS = 1000, 500, 14
_ANNOUNCED = re.compile(r"Serving at http://127\.0\.0\.1:(\d+)/v1")
_CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
MESSAGES = [
    {"role": "system", "content": "You are the help desk of a shop. Be brief and kind."},
    {"role": "user", "content": "Where is my parcel?"},
]


@dataclass(frozen=True, slots=True)
class Target:
    """A running server. `key` is its callers' key."""

    name: str
    port: int
    key: str
    process: subprocess.Popen[Any]

    def cpu_s(self) -> float:
        """Processor seconds of the server so far, all its threads."""
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / _TICKS

    def memory_mib(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def request(self, **fields: Any) -> dict[str, Any]:
        """Head and body of a chat completion."""
        body = json.dumps({"model": "practicum", "messages": MESSAGES, **fields})
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nauthorization: Bearer {self.key}\r\n"
            f"content-type: application/json\r\naccept: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return {"port": self.port, "head": head, "body": body}


# -- servers and load ------------------------------------------------------------------------------------------------


def pinned(core: int) -> Sequence[str]:
    """A command's beginning that keeps it on one core, where there are several."""
    return ["taskset", "-c", str(_CORES[core % len(_CORES)])] if len(_CORES) > 1 else []


@contextmanager
def process(command: Sequence[str], *, core: int, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    running = subprocess.Popen([*pinned(core), *command], **options)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(5)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@contextmanager
def ours(name: str, key: str, *arguments: str, core: int = 0) -> Iterator[Target]:
    """One of `gateway_targets.py`."""
    command = [sys.executable, str(HERE / "gateway_targets.py"), *arguments]
    with process(command, core=core, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stderr or ():
            if found := _ANNOUNCED.search(line):
                yield Target(name, int(found[1]), key, running)
                return
        raise RuntimeError(f"{name} stopped with status {running.wait()}")


@contextmanager
def litellm(folder: Path, place: Path, upstream: int) -> Iterator[Target]:
    """LiteLLM's proxy without a database, with one worker, in front of `upstream`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parameters = {"model": "openai/practicum", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
    config = place / "litellm.json"
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": "practicum", "litellm_params": parameters}],
                "general_settings": {"master_key": "sk-benchmark"},
                "litellm_settings": {"telemetry": False},
            }
        )
    )
    command = [str(folder / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    settings = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    with process([*command, "--telemetry", "False"], core=0, env=settings, **quiet) as running:
        deadline = time.monotonic() + 120
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health/liveliness", timeout=5, trust_env=False).raise_for_status()
                break
            except httpx.HTTPError:
                if running.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("LiteLLM's proxy did not start") from None
                time.sleep(0.3)
        yield Target("litellm", port, "sk-benchmark", running)


def load(target: Target, mode: str, connections: int, *, fields: dict[str, Any] | None = None, **more: Any) -> Any:
    """What the generator saw, with the server's processor time per answer."""
    spec = {**target.request(**fields or {}), "mode": mode, "connections": connections, **more}
    before_s = target.cpu_s()
    command = [*pinned(1), sys.executable, str(HERE / "http_load.py")]
    done = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr[-2000:]}")
    seen = json.loads(done.stdout)
    seen["cpu_ms"] = 1000 * (target.cpu_s() - before_s) / max(seen["answers"], 1)
    return seen


# -- figures ---------------------------------------------------------------------------------------------------------


def one_round(target: Target, seconds: float) -> dict[str, Any]:
    """Saturation, latency at a fixed rate, and streams at a fixed pace; times in milliseconds."""
    full = load(target, "closed", CONNECTIONS, seconds=seconds)
    calm = load(target, "open", CONNECTIONS, rate=RATE, seconds=seconds)
    paced = {"stream": True, "seed": PACE_MS, "max_tokens": TOKENS}
    streamed = load(target, "streams", STREAMS, fields=paced)
    return {
        "requests_per_s": full["rate"],
        "cpu_ms_per_request": full["cpu_ms"],
        "generator_busy": full["busy"],
        "p50_ms": 1000 * calm["latency_s"]["p50"],
        "p99_ms": 1000 * calm["latency_s"]["p99"],
        "token_gap_p50_ms": 1000 * streamed["gap_s"]["p50"],
        "token_gap_p99_ms": 1000 * streamed["gap_s"]["p99"],
        "cpu_ms_per_token": streamed["cpu_ms"] / TOKENS,
        "errors": sum(sum(seen["errors"].values()) for seen in (full, calm, streamed)),
    }


def many_streams(target: Target) -> dict[str, Any]:
    """A thousand streams at once, and what they add to the server's memory."""
    before = target.memory_mib()
    peak = before
    fields = {"stream": True, "seed": MANY_PACE_MS, "max_tokens": MANY_TOKENS}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load, target, "streams", MANY, fields=fields)
        while not running.done():
            peak = max(peak, target.memory_mib())
            time.sleep(0.05)
    seen = running.result()
    return {
        "streams": MANY,
        "whole": seen["answers"] - seen["errors"].get("a stream without its terminator", 0),
        "errors": seen["errors"],
        "memory_mib_before": before,
        "memory_mib_peak": peak,
        "kib_per_stream": 1024 * (peak - before) / MANY,
        "token_gap_p50_ms": 1000 * seen["gap_s"]["p50"],
        "token_gap_p99_ms": 1000 * seen["gap_s"]["p99"],
        "pace_ms": MANY_PACE_MS,
    }


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    summed = {"errors": sum(one["errors"] for one in rounds)}
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]} | summed


def compared(figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The aims: half the bare server's requests, eight times LiteLLM's, less than 5 ms more at the 99th percentile."""
    ours_, bare = figures["practicum"], figures["bare"]
    found = {
        "throughput_of_bare": ours_["requests_per_s"] / bare["requests_per_s"],
        "throughput_of_bare_by_processor_time": bare["cpu_ms_per_request"] / ours_["cpu_ms_per_request"],
        "added_p50_ms": ours_["p50_ms"] - bare["p50_ms"],
        "added_p99_ms": ours_["p99_ms"] - bare["p99_ms"],
        "added_token_gap_p50_ms": ours_["token_gap_p50_ms"] - bare["token_gap_p50_ms"],
        "added_token_gap_p99_ms": ours_["token_gap_p99_ms"] - bare["token_gap_p99_ms"],
    }
    if theirs := figures.get("litellm"):
        found["throughput_of_litellm"] = ours_["requests_per_s"] / theirs["requests_per_s"]
        found["throughput_of_litellm_by_processor_time"] = theirs["cpu_ms_per_request"] / ours_["cpu_ms_per_request"]
    return found


def durable(home: Path, key: str, port: int) -> dict[str, Any]:
    """What the server says of its records: none may be lost."""
    ready = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=30, trust_env=False).json()
    with open_store(home / "practicum.db") as store:
        complete = len(store.calls(status="complete", limit=ready["capture"]["finished"] + 1))
    return {
        "finished": ready["capture"]["finished"],
        "complete_on_record": complete,
        "lost": ready["capture"]["lost"],
        "commits": ready["store"]["commits"],
    }


def measure(rounds: int, seconds: float, folder: Path | None) -> dict[str, Any]:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = place / "home"
        with open_store(home / "practicum.db") as store:
            key = create_key(store, "benchmark", ["sample"])
        bare = stack.enter_context(ours("bare", "none", "bare"))
        targets = [bare, stack.enter_context(ours("practicum", key, "practicum", str(home)))]
        if folder is not None:
            upstream = stack.enter_context(ours("upstream", "none", "bare", core=1))
            targets.append(stack.enter_context(litellm(folder, place, upstream.port)))
        for target in targets:
            load(target, "closed", CONNECTIONS, seconds=0.5)  # warm
        made: dict[str, list[dict[str, Any]]] = {target.name: [] for target in targets}
        for _ in range(rounds):
            for target in targets:
                made[target.name].append(one_round(target, seconds))
        many = {target.name: many_streams(target) for target in targets if target.name != "litellm"}
        figures = {name: medians(one) for name, one in made.items()}
        return {
            "setting": {
                "rounds": rounds, "seconds": seconds, "connections": CONNECTIONS, "rate": RATE, "streams": STREAMS,
                "pace_ms": PACE_MS, "tokens": TOKENS, "pinned": len(_CORES) > 1,
            },
            "medians": figures,
            "compared": compared(figures),
            "many_streams": many,
            "capture": durable(home, key, targets[1].port),
            "rounds": made,
        }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--litellm", type=Path, help=f"LiteLLM's environment; default {LITELLM} where it exists")
    chosen = parser.parse_args()
    folder = chosen.litellm or (LITELLM if LITELLM.is_dir() else None)
    if folder is not None and not (folder / "bin" / "litellm").is_file():
        parser.error(f"there is no {folder / 'bin' / 'litellm'}; --help says how to install it")
    figures = measure(2 if chosen.quick else 5, 1.5 if chosen.quick else 4.0, folder)
    print(json.dumps({name: part for name, part in figures.items() if name != "rounds"}, indent=2))
    print(write_results("gateway", figures))
    if folder is None:
        print(f"LiteLLM was left out: there is no {LITELLM}; see --help.", file=sys.stderr)
    faults = [one["errors"] for one in figures["medians"].values()] + [figures["capture"]["lost"]]
    return 1 if any(faults) or any(one["errors"] for one in figures["many_streams"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())

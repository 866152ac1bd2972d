"""What the benchmarks share: a server in a process of its own, versions to promote, and where figures go."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx

from practicum.policies import Registry
from practicum.types.ids import new_id
from practicum.types.policies import Decision, DecisionVerdict

PRACTICUM = (sys.executable, "-m", "practicum")
_ANNOUNCED = re.compile(r"Serving .* at (http://[^/]+)/v1")
_PACKAGES = ("practicum", "torch", "transformers", "peft", "trl", "openai", "fastapi", "uvicorn", "apsw")


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    url: str
    process: subprocess.Popen[str]

    def ready(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.url}/readyz", timeout=30, trust_env=False).json())

    def wait_for_version(self, wanted: int, timeout_s: float = 120.0) -> float:
        """Wait until a version is served; seconds that it took."""
        began = time.monotonic()
        while self.ready()["serving_version"] != wanted:
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"version {wanted} was never served: {self.ready()}")
            time.sleep(0.05)
        return time.monotonic() - began


@contextmanager
def serving(home: Path, *options: str, command: Sequence[str] = (*PRACTICUM, "serve")) -> Iterator[Served]:
    """`practicum serve` over `home` on a free port, killed at the end."""
    arguments = [*command, "--home", str(home), "--port", "0", *options]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := _ANNOUNCED.search(line):
                yield Served(found[1], process)
                return
        raise RuntimeError(f"the server stopped with status {process.wait()}")
    finally:
        process.kill()
        process.wait()


def train_adapters(model: Any, place: Path, count: int, *, steps: int = 3, learning_rate: float = 5e-3) -> list[Path]:
    """`count` adapter folders published by the trainer, each some steps further on than the one before."""
    from practicum.engines.embedded.settings import LoraSettings, TrainerSettings
    from practicum.engines.embedded.trainer import EmbeddedTrainer
    from practicum.types.training import Datum

    vocabulary = int(model.get_output_embeddings().weight.shape[0])
    trainer = EmbeddedTrainer(model, lora=LoraSettings(rank=8, alpha=16), settings=TrainerSettings(threads=1))
    rows = [
        Datum(
            row_id=str(row),
            prompt_ids=tuple((row * 31 + place_ * 17) % vocabulary for place_ in range(8)),
            completion_ids=tuple((row * 13 + place_ * 7 + 5) % vocabulary for place_ in range(12)),
            weights=(1 / 48,) * 12,
        )
        for row in range(4)
    ]
    folders = []
    for number in range(1, count + 1):
        for step in range(steps):
            trainer.forward_backward(rows, "cross_entropy", key=f"{number}.{step}")
            trainer.optim_step(learning_rate=learning_rate, key=f"{number}.{step}.step")
        folders.append(place / f"adapter-{number}")
        trainer.publish(folders[-1])
    return folders


def decide(registry: Registry, to: int, verdict: DecisionVerdict) -> None:
    """Move the live pointer as `practicum release` does."""
    registry.apply_decision(
        Decision(
            decision_id=new_id("dec"),
            version=to,
            previous=registry.live().version,
            verdict=verdict,
            reason="benchmark",
            actor="benchmark",
            created_at=time.time(),
        )
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def write_results(name: str, figures: dict[str, Any]) -> Path:
    """Figures with the machine, the versions and the command that made them, in `results/NAME.json`."""
    path = Path("results") / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    body = {
        "figures": figures,
        "machine": _machine(),
        "versions": _versions(),
        "command": " ".join(["python", *sys.argv]),
    }
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    return path


def _machine() -> dict[str, Any]:
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    return {"system": platform.platform(), "cores": os.cpu_count(), "load_average": load}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

"""`practicum train` beside TRL's GRPOTrainer: same model, tasks, group size, lengths, threads and LoRA, one run.

Two jobs: a format task to a held-out reward (time a step, tokens/s in sampling and in training, peak memory, reward
against the time of steps), and groups with prompts of a thousand tokens (training throughput). Ours runs whole:
gateway, records, rollout service. Beside it stands the limit: what the machine's matrix products would need for the
same work.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.serving import write_results

from practicum.config import default_cache_dir

ROOT = Path(__file__).parent.parent
REACHED = 0.9
LORA = {"rank": 16, "alpha": 32}


def main() -> None:
    """Run both on both jobs, and write down what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--long-steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    common = {"model": str(_model_folder()), "threads": chosen.threads, "seed": chosen.seed, **LORA}
    jobs = {
        "format": common
        | {"tasks": str(ROOT / "recipes/1_baby_steps/json_answer.py"), "steps": chosen.steps, "groups": 4}
        | {"samples": 8, "rows": 32, "learning_rate": 1e-3, "eval_every": 4, "checkpointing": False},
        "long shared prompts": common
        | {"tasks": str(ROOT / "benchmarks/long_prompts.py"), "steps": chosen.long_steps, "groups": 1}
        | {"samples": 8, "rows": 8, "learning_rate": 1e-5, "eval_every": 0, "checkpointing": False},
    }
    figures: dict[str, Any] = {"threads": chosen.threads, "jobs": {}}
    for name, job in jobs.items():
        tasks = _tasks(Path(job["tasks"]))
        whole = job | {
            "max_tokens": tasks.MAX_TOKENS,
            "prompts": [task.instructions[0] for task in tasks.TRAIN],
            "heldout": [task.instructions[0] for task in tasks.HELDOUT],
        }
        found = {"trl": _trl(whole), "practicum": _ours(whole)}
        found["ratios"] = _ratios(found["practicum"], found["trl"])
        figures["jobs"][name] = found
        print(json.dumps({name: {**found, **{who: _brief(found[who]) for who in ("trl", "practicum")}}}, indent=2))
    figures["limit"] = _limit(figures["jobs"]["format"]["practicum"], chosen.threads)
    print(json.dumps({"limit": figures["limit"]}, indent=2))
    write_results("grpo_vs_trl", figures)


def _trl(job: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps({**job, "folder": folder}))
        out, _ = _measured([sys.executable, str(ROOT / "benchmarks/trl_grpo.py"), str(path)])
    found = json.loads(out)
    return _summary(found["steps"], found["peak_mb"])


def _ours(job: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        sets = {
            "home": folder,
            "model.id": job["model"],
            "model.threads": job["threads"],
            "model.max_batch": job["rows"],
            "learn.seed": job["seed"],
            "learn.rank": job["rank"],
            "learn.alpha": job["alpha"],
            "train.algorithm": "grpo",
            "train.options": json.dumps({"aggregation": "dapo"}),
            "train.steps": job["steps"],
            "train.groups": job["groups"],
            "train.samples": job["samples"],
            "train.learning_rate": job["learning_rate"],
            "train.eval_every": job["eval_every"],
            "train.gate": "false",
            "rollouts.run": job["rows"],
            "rollouts.ready": job["rows"],
        }
        changed = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "practicum", "train", "--json", "--tasks", job["tasks"], *changed]
        _, peak_mb = _measured(command)
        report = json.loads(_measured([sys.executable, "-m", "practicum", "report", "--json", "--home", folder])[0])
    steps = [
        {
            "step_s": figures["sample_s"] + figures["train_s"],
            **{name: figures[name] for name in ("sample_s", "train_s", "sampled_tokens", "reward", "logprob_gap")},
            **({"heldout_reward": figures["heldout_reward"]} if "heldout_reward" in figures else {}),
        }
        for figures in report["log"]
        if not figures.get("skipped")
    ]
    if job["eval_every"]:
        steps.append({"heldout_reward": report["measures"]["reward_after"]})
    return _summary(steps, peak_mb)


def _measured(command: Sequence[str]) -> tuple[str, float]:
    """A command's stdout, and the most memory that its process held, in MB."""
    environ = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ, cwd=ROOT)
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            log.seek(0)
            raise SystemExit(f"{' '.join(command[:4])} failed:\n{log.read()[-3000:]}")
    return out, usage.ru_maxrss / 1024


def _summary(steps: Sequence[Mapping[str, float]], peak_mb: float) -> dict[str, Any]:
    """Medians over steps behind the first, which warms up; rewards against the time that steps had taken."""
    timed = [step for step in steps if "step_s" in step]
    warm = timed[1:] or timed
    curve, passed = [], 0.0
    for step in steps:
        if "heldout_reward" in step:
            curve.append({"step_time_s": passed, "heldout_reward": step["heldout_reward"]})
        passed += step.get("step_s", 0.0)
    reached = next((point["step_time_s"] for point in curve if point["heldout_reward"] >= REACHED), None)
    return {
        "step_s": statistics.median(step["step_s"] for step in warm),
        "sampling_tokens_per_s": sum(s["sampled_tokens"] for s in warm) / sum(s["sample_s"] for s in warm),
        "training_tokens_per_s": sum(s["sampled_tokens"] for s in warm) / sum(s["train_s"] for s in warm),
        "peak_mb": peak_mb,
        f"step_time_to_{REACHED:g}_s": reached,
        "heldout": curve,
        "steps": list(steps),
    }


def _brief(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "steps"}


def _ratios(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float | None]:
    reached = f"step_time_to_{REACHED:g}_s"
    return {
        "step_time": theirs["step_s"] / ours["step_s"],
        "sampling_throughput": ours["sampling_tokens_per_s"] / theirs["sampling_tokens_per_s"],
        "training_throughput": ours["training_tokens_per_s"] / theirs["training_tokens_per_s"],
        "memory": ours["peak_mb"] / theirs["peak_mb"],
        "time_to_reward": theirs[reached] / ours[reached] if ours[reached] and theirs[reached] else None,
    }


def _limit(ours: Mapping[str, Any], threads: int) -> dict[str, float]:
    """What a step's floating-point work would take if every one of it ran as fast as a large matrix product.

    A token costs 2 operations a weight to sample, and 4 to train an adapter on (forward, and the gradient of the
    activations); the embedding's product counts for tokens that are predicted. Prompts are counted once a group.
    """
    import torch

    torch.set_num_threads(threads)
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)
    times = []
    for _ in range(12):
        began = time.monotonic()
        torch.mm(a, b)
        times.append(time.monotonic() - began)
    peak = 2 * 1536**3 / min(times)
    weights = 134_515_008
    step = statistics.median(s["sampled_tokens"] for s in ours["steps"] if "sampled_tokens" in s)
    needed = step * weights * (2 + 4)
    return {
        "gemm_gflop_per_s": peak / 1e9,
        "needed_gflop_a_step": needed / 1e9,
        "share_of_limit": needed / peak / ours["step_s"],
    }


def _model_folder() -> Path:
    from practicum.engines.embedded import models

    return Path(models.resolve("smollm2-135m-instruct", default_cache_dir()))


def _tasks(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

"""Training throughput of the embedded engine: shared prefixes, packed rows, and padded rows in transformers' module.

    python benchmarks/trainer.py --json results/trainer.json

Each figure comes from one forward and backward of the policy-gradient loss in a process of its own, adapter of rank 16,
one thread, after a short call that warms it up. `rate` counts every row's prompt and completion, shared or not, per
second of processor time, which a neighbour on the machine distorts less than wall time. `padded` is the plain way:
peft's layers in the transformers module, rows side by side, every needed logit at once; `packed` is the embedded
trainer without sharing. `of_gemm` sets the multiplications that the shared layout needs (layers and head, forward and
backward to the inputs; attention is not counted) against what this machine does in a large matrix product, measured in
the same process: 1 would be nothing but such products.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES = {"short_prompts": (4, 8, 40, 30), "long_prompt": (1, 8, 1000, 50)}
WAYS = ("padded", "packed", "shared")
BUDGET = 1024


def main() -> int:
    """Run every case every way, and print or write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_measure(*options.one)))
        return 0
    found: dict[str, Any] = {}
    for case, (groups, size, prompt, completion) in CASES.items():
        found[case] = {
            "rows": groups * size,
            "groups": groups,
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "ways": {way: _apart(case, way) for way in WAYS},
        }
        print(case, json.dumps(found[case]["ways"], indent=1), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _apart(case: str, way: str) -> Any:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", case, way]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def _measure(case: str, way: str) -> dict[str, float]:
    import torch

    from practicum.engines.embedded import models

    torch.set_num_threads(1)
    folder = models.resolve(models.DEFAULT_MODEL, Path.home() / ".cache" / "practicum")
    model, _ = models.load(folder)
    rows = _rows(*CASES[case])
    run = _padded(model) if way == "padded" else _trainer(model, shared=way == "shared")
    run(rows[:1], "warm")
    wall, cpu = time.perf_counter(), time.process_time()
    loss = run(rows, "measured")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    tokens = sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    found = {
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "rate": round(tokens / cpu, 1),
        "loss": loss,
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }
    if way == "shared":
        speed = _gemm()
        found |= {"gemm_gflops": round(speed / 1e9, 1), "of_gemm": round(_flops(model, rows) / speed / cpu, 3)}
    return found


def _rows(groups: int, size: int, prompt: int, completion: int) -> list[Any]:
    from practicum.types.training import Datum

    chance = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(1000, 40000) for _ in range(count))

    rows = []
    for group in range(groups):
        shared = ids(prompt)
        rows += [
            Datum(
                row_id=f"{group}.{index}",
                prompt_ids=shared,
                completion_ids=ids(completion),
                weights=(1 / (groups * size),) * completion,
                advantages=(chance.uniform(-1, 1),) * completion,
                logprobs=(-10.0,) * completion,
            )
            for index in range(size)
        ]
    return rows


def _trainer(model: Any, *, shared: bool) -> Any:
    """The embedded trainer; without sharing, so many rows in a call as the budget holds side by side."""
    from practicum.engines.embedded.settings import TrainerSettings
    from practicum.engines.embedded.trainer import EmbeddedTrainer

    trainer = EmbeddedTrainer(model, settings=TrainerSettings(threads=1, micro_batch_tokens=BUDGET))
    if not shared:
        trainer.policy.trees = False

    def run(rows: list[Any], key: str) -> float:
        size = len(rows) if shared else max(1, BUDGET // (len(rows[0].prompt_ids) + len(rows[0].completion_ids)))
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        done = [
            trainer.forward_backward(part, "policy_gradient", key=f"{key}{index}") for index, part in enumerate(parts)
        ]
        return sum(each.loss_sum for each in done)

    return run


def _padded(model: Any) -> Any:
    """peft's layers in the transformers module over rows of one length, and autograd through all of their logits."""
    import torch
    from peft import LoraConfig, get_peft_model

    from practicum.algorithms import losses, surrogates
    from practicum.engines.embedded.adapter import linear_modules
    from practicum.engines.embedded.batches import targets_of
    from practicum.types.training import PolicyGradient

    policy = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=sorted(linear_modules(model))))

    def run(rows: list[Any], _: str) -> float:
        first, total = len(rows[0].prompt_ids), 0.0
        size = max(1, BUDGET // (first + len(rows[0].completion_ids)))
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            ids = torch.tensor([[*row.prompt_ids, *row.completion_ids] for row in part])
            keep = torch.zeros_like(ids, dtype=torch.bool)
            keep[:, first - 1 : -1] = True
            logits = policy(input_ids=ids, logits_to_keep=keep, use_cache=False).logits
            told = targets_of(part)
            logp = losses.token_logprobs(logits, told.ids)
            found = surrogates.coefficients(
                logp, told.sampler_logprobs, told.advantages, told.weights, PolicyGradient()
            )
            loss = surrogates.policy_gradient(logp, found)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        return total

    return run


def _flops(model: Any, rows: list[Any]) -> float:
    """Two a weight and token forward, two backward to the input; the head only where a token is predicted."""
    from practicum.engines.embedded.adapter import linear_modules
    from practicum.engines.embedded.batches import pairs_of
    from practicum.engines.embedded.layout import layout_of

    layers = sum(module.weight.numel() for module in linear_modules(model).values())
    layout = layout_of(pairs_of(rows))
    head = int(model.get_output_embeddings().weight.numel())
    return 4.0 * (layers * len(layout) + head * len(layout.keep_N))


def _gemm() -> float:
    """Operations a second of processor time in a product of the size of the model's largest."""
    import torch

    x, weight = torch.randn(1120, 576), torch.randn(3072, 576)
    torch.nn.functional.linear(x, weight)
    start, count = time.process_time(), 20
    for _ in range(count):
        torch.nn.functional.linear(x, weight)
    return 2.0 * x.numel() * len(weight) * count / (time.process_time() - start)


if __name__ == "__main__":
    sys.exit(main())

"""Sampling on this machine's processor: Practicum's engine, transformers' `generate` and llama.cpp side by side.

The same model in float32, the same prompts as token ids, the same number of new tokens at temperature 1 over the whole
vocabulary, batches of 1, 8 and 32. Each engine has a process of its own with the same threads; they take turns, and the
median of the rounds counts. Practicum's figures include what the others do not do: a logprob with every token, and
results that do not depend on what else is in the batch. llama.cpp comes from the wheel `xllamacpp`, in an interpreter
that `--llama` names (`make bench-sampler` makes one); its float32 file is made of the same weights. Its key/value cache
is float32 as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BATCHES = (1, 8, 32)
PROMPT_TOKENS = 48
Run = Callable[[list[list[int]], int, int], None]


def main() -> None:
    """Time all engines in turns; or be one of them (`--engine`)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama", type=Path, default=ROOT / ".practicum/llama/bin/python")
    parser.add_argument("--engine", choices=sorted(ENGINES), help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.engine:
        _be(ENGINES[chosen.engine](chosen.model, chosen.threads), chosen.tokens)
        return
    from benchmarks.serving import write_results

    folder, gguf = _models()
    found = _measured(chosen, folder, gguf)
    rows = {
        name: {str(size): statistics.median(rounds) for size, rounds in sizes.items()} for name, sizes in found.items()
    }
    for name, sizes in rows.items():
        print(name, *(f"batch {size}: {value:.1f} tokens/s" for size, value in sizes.items()), sep="  ")
    ratios = {
        f"practicum_to_{other}": {size: rows["practicum"][size] / rows[other][size] for size in rows["practicum"]}
        for other in rows
        if other != "practicum"
    }
    print(json.dumps(ratios, indent=2))
    write_results(
        "sampler",
        {"threads": chosen.threads, "new_tokens": chosen.tokens, "prompt_tokens": PROMPT_TOKENS}
        | {"rounds": chosen.rounds, "tokens_per_s": rows, "every_round": found, "ratios": ratios},
    )


def _measured(chosen: argparse.Namespace, folder: Path, gguf: Path) -> dict[str, dict[int, list[float]]]:
    """Tokens/s of every round, by engine and batch; the engines take turns within a round."""
    with_llama = chosen.llama.is_file()
    if not with_llama:
        print(f"without llama.cpp: there is no {chosen.llama}; `make bench-sampler` makes it", file=sys.stderr)
    engines = {
        "practicum": (sys.executable, folder),
        "practicum_free": (sys.executable, folder),
        "transformers": (sys.executable, folder),
    } | ({"llama_cpp": (chosen.llama, gguf)} if with_llama else {})
    environment = os.environ | {"OMP_NUM_THREADS": str(chosen.threads)}
    sizes = ("--threads", str(chosen.threads), "--tokens", str(chosen.tokens))
    processes = {
        name: subprocess.Popen(
            [str(python), __file__, "--engine", name, "--model", str(model), *sizes],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for name, (python, model) in engines.items()
    }  # fmt: skip
    found: dict[str, dict[int, list[float]]] = {name: {size: [] for size in BATCHES} for name in processes}
    try:
        for name in processes:  # the first answers are not counted: threads start, caches fill
            for size in BATCHES:
                _asked(processes[name], size, 0)
        for turn in range(1, chosen.rounds + 1):
            for size in BATCHES:
                for name, process in processes.items():
                    found[name][size].append(size * chosen.tokens / _asked(process, size, turn))
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    return found


def _asked(process: subprocess.Popen[str], size: int, turn: int) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{size} {turn}\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("seconds "):
            return float(line.split()[1])
    raise SystemExit("An engine ended before its answer; its error stands above.")


def _be(run: Run, tokens: int) -> None:
    """Answer `size round` with the seconds that it took, until the end of the input."""
    for line in sys.stdin:
        size, turn = map(int, line.split())
        prompts = [_prompt(turn * 1000 + row) for row in range(size)]
        began = time.perf_counter()
        run(prompts, tokens, turn * 1000)
        print(f"seconds {time.perf_counter() - began}", flush=True)


def _prompt(number: int) -> list[int]:
    """Ids that no cache has seen: each prompt begins differently."""
    return [20 + (number * 7919 + place * place * 31 + place) % 40000 for place in range(PROMPT_TOKENS)]


def _practicum(model: str, threads: int, *, batch_invariant: bool = True) -> Run:
    from practicum.engines.embedded import models
    from practicum.engines.embedded.sampler import EmbeddedSampler
    from practicum.engines.embedded.settings import SamplerSettings
    from practicum.types.tokens import SampleRequest, SamplingParams

    loaded, _ = models.load(Path(model))
    settings = SamplerSettings(threads=threads, max_slots=max(BATCHES), batch_invariant=batch_invariant)
    sampler = EmbeddedSampler(loaded, settings=settings)

    def run(prompts: list[list[int]], tokens: int, seed: int) -> None:
        requests = [
            SampleRequest(
                request_id=str(row),
                prompt_ids=tuple(ids),
                version=0,
                params=SamplingParams(max_tokens=tokens, seed=seed + row),
            )
            for row, ids in enumerate(prompts)
        ]
        assert all(len(one.ids) == tokens for one in sampler.generate(requests))

    return run


def _practicum_free(model: str, threads: int) -> Run:
    return _practicum(model, threads, batch_invariant=False)


def _transformers(model: str, threads: int) -> Run:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True).eval()
    plain: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}

    def run(prompts: list[list[int]], tokens: int, seed: int) -> None:
        torch.manual_seed(seed)
        ids = torch.tensor(prompts)
        loaded.generation_config.eos_token_id = None
        made = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, pad_token_id=0, **plain)
        assert made.shape[1] == PROMPT_TOKENS + tokens

    return run


def _llama_cpp(model: str, threads: int) -> Run:
    from concurrent.futures import ThreadPoolExecutor

    import xllamacpp

    given = xllamacpp.CommonParams()
    given.model.path = model
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = threads
    given.n_parallel = max(BATCHES)
    given.n_ctx = max(BATCHES) * 256
    given.cache_type_k = given.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    given.cache_prompt = False
    given.warmup = True
    given.verbosity = -1
    server = xllamacpp.Server(given)

    def one(ids: list[int], tokens: int, seed: int) -> None:
        asked = {"prompt": ids, "n_predict": tokens, "seed": seed, "ignore_eos": True, "cache_prompt": False}
        said = server.handle_completions(asked | {"temperature": 1.0, "samplers": ["temperature"]})
        assert said["usage"]["completion_tokens"] == tokens, said

    def run(prompts: list[list[int]], tokens: int, seed: int) -> None:
        with ThreadPoolExecutor(len(prompts)) as pool:
            for done in [pool.submit(one, ids, tokens, seed + row) for row, ids in enumerate(prompts)]:
                done.result()

    return run


ENGINES: dict[str, Callable[[str, int], Run]] = {
    "practicum": _practicum,
    "practicum_free": _practicum_free,
    "transformers": _transformers,
    "llama_cpp": _llama_cpp,
}


def _models() -> tuple[Path, Path]:
    """The default model as a folder of float32 weights, and the same weights in float32 as llama.cpp reads them."""
    from practicum.config import default_cache_dir
    from practicum.engines.embedded import models

    folder = Path(models.resolve(models.DEFAULT_MODEL, default_cache_dir()))
    target = folder.with_name(folder.name + "-f32.gguf")
    if not target.is_file():
        draft = target.with_suffix(".draft")
        _write_float32(models.find_gguf(models.PACKAGED[models.DEFAULT_MODEL]), draft)
        draft.replace(target)
    return folder, target


def _write_float32(source: Path, target: Path) -> None:
    import gguf

    read = gguf.GGUFReader(source)
    kinds = read.fields
    writer = gguf.GGUFWriter(target, kinds["general.architecture"].contents())
    skipped = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
    for name, field in kinds.items():
        if name.startswith(skipped):
            continue
        inner: Sequence[Any] = field.types[1:]
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner[0] if inner else None)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in read.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()

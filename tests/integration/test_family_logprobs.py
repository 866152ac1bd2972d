"""Merged episodes of a family on the embedded engine: what was recorded while serving is what training recomputes.

Pins: over conversations with tools that continue served ids, every trained token's logprob, recomputed by the trainer
in one pass over the merged row, is within 1e-4 of the one that the sampler gave when the token was served.
"""

from __future__ import annotations

import pytest
import torch
from tests.integration.test_family_drift import Harness
from tests.unit.renderers.family_fixtures import fixture_renderer
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.engines.embedded.sampler import EmbeddedSampler
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.episodes.rows import training_rows
from practicum.types.tokens import SampleRequest, SamplingParams
from practicum.types.training import Datum


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gptoss"])
def test_recomputed_logprobs_match_the_recorded_ones(name: str) -> None:
    renderer = fixture_renderer(name)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=renderer.tokenizer.vocab_size,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.1,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    sampler, trainer = EmbeddedSampler(model), EmbeddedTrainer(model)
    worst = trained = sampled = 0.0
    for seed in range(4):
        harness = Harness(renderer, seed)
        for turn in range(3):
            prepared = harness.prepare()
            if (seed + turn) % 2:  # the model's own words: any ids at all, control tokens among them
                params = SamplingParams(seed=seed, temperature=1.0, max_tokens=20)
                request = SampleRequest(
                    request_id=f"{seed}.{turn}",
                    prompt_ids=prepared.prompt_ids,
                    version=0,
                    stop_ids=renderer.stop_ids,
                    params=params,
                )
                (done,) = sampler.generate([request])
                ids, logprobs = done.ids, done.logprobs
                sampled += len(ids)
            else:  # calls and reasoning, which no untrained model writes
                ids = tuple(harness.written(prepared))
                logprobs = sampler.score(prepared.prompt_ids, ids, version=0)
            harness.replay(harness.answer(prepared, ids, logprobs))
        (row,) = training_rows(harness.store.calls).rows
        datum = Datum(
            row_id=row.row_id,
            prompt_ids=row.prompt_ids,
            completion_ids=row.completion_ids,
            weights=tuple(float(own) for own in row.mask),
        )
        found = trainer.forward_backward([datum], "cross_entropy", key=f"{name}{seed}").logprobs[row.row_id]
        pairs = [(a, b) for a, b, own in zip(found, row.logprobs, row.mask, strict=True) if own]
        assert len(pairs) == sum(len(call.completion_ids) for call in harness.store.calls)
        worst = max([worst, *(abs(a - b) for a, b in pairs if b is not None)])
        trained += len(pairs)
    sampler.close()
    assert worst < 1e-4 and trained > 200 and sampled > 40

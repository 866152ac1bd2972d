"""Sampler and trainer together: what is sampled is what is trained on, what is trained is what is served.

Pins the standing alarm: |log pi (trainer) - log mu (sampler)| stays below 1e-4 at version lag 0, on the base, on
weights handed over in memory and on a published adapter (L11, L12); an adapter applied twice would show as 1e-2.
"""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.engines.embedded import models
from practicum.engines.embedded.sampler import EmbeddedSampler
from practicum.engines.embedded.settings import LoraSettings, SamplerSettings, TrainerSettings
from practicum.engines.embedded.trainer import EmbeddedTrainer
from practicum.types.seams import Sampler, Trainer
from practicum.types.tokens import SampleRequest, SamplingParams
from practicum.types.training import Datum

PROMPTS = [tuple(range(10 * i, 10 * i + 5 + 3 * i)) for i in range(1, 9)]


@pytest.fixture
def model():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def _sample(sampler, version, *, prompts=PROMPTS, **params):
    values = {"temperature": 0.8, "max_tokens": 24, **params}
    return sampler.generate(
        [
            SampleRequest(
                request_id=f"r{i}", prompt_ids=prompt, version=version, params=SamplingParams(seed=i, **values)
            )
            for i, prompt in enumerate(prompts)
        ]
    )


def _rows(done, *, reward=None, prompts=PROMPTS, temperature=0.8):
    tokens = sum(len(one.ids) for one in done)
    return [
        Datum(
            row_id=one.request_id,
            prompt_ids=prompt,
            completion_ids=one.ids,
            weights=(1 / tokens,) * len(one.ids),
            advantages=tuple(1.0 if reward is None else reward(token) for token in one.ids),
            logprobs=one.logprobs,
            temperature=temperature,
        )
        for prompt, one in zip(prompts, done, strict=True)
    ]


def _worst_mismatch(trainer, done, key, **options):
    rows = _rows(done, **options)
    result = trainer.forward_backward(rows, "policy_gradient", key=key)
    for row in rows:
        assert result.logprobs[row.row_id] == pytest.approx(row.logprobs, abs=1e-4)
    return result.sums["logprob_delta_max"]


def test_both_satisfy_their_seams(model):
    sampler: Sampler = EmbeddedSampler(model)
    trainer: Trainer = EmbeddedTrainer(model)
    assert sampler.context_length == 256 and "distill" in trainer.capabilities.losses


@pytest.mark.parametrize("truncation", [{}, {"top_p": 0.8, "top_k": 50}])
def test_the_sampler_and_the_trainer_agree_before_and_after_learning(model, truncation, tmp_path):
    sampler = EmbeddedSampler(model)
    trainer = EmbeddedTrainer(model, lora=LoraSettings(rank=4, alpha=8), base_name="tiny")
    assert _worst_mismatch(trainer, _sample(sampler, 0, **truncation), "v0") < 1e-4
    trainer.optim_step(learning_rate=2e-2, key="step")
    stale = trainer.forward_backward(_rows(_sample(sampler, 0)), "policy_gradient", key="stale")
    assert stale.sums["logprob_delta_max"] > 1e-2

    sampler.put(1, trainer.adapter_state(), trainer.scaling)
    digest = trainer.publish(tmp_path / "v2")
    sampler.weights.load(2, tmp_path / "v2", digest)
    in_memory, from_disk = (_sample(sampler, version, **truncation) for version in (1, 2))
    assert [one.ids for one in in_memory] == [one.ids for one in from_disk]
    assert _worst_mismatch(trainer, in_memory, "v1") < 1e-4
    assert _worst_mismatch(trainer, from_disk, "v2") < 1e-4
    sampler.close()


def test_policy_gradient_learns_what_is_rewarded(model):
    """Reward even ids: their share rises from a half to most, round by round, weights handed over in memory."""
    sampler = EmbeddedSampler(model)
    trainer = EmbeddedTrainer(
        model, lora=LoraSettings(rank=4, alpha=8), settings=TrainerSettings(micro_batch_tokens=4096)
    )
    shares = []
    for step in range(14):
        done = _sample(sampler, step, temperature=1.0)
        ids = [token for one in done for token in one.ids]
        shares.append(sum(token % 2 == 0 for token in ids) / len(ids))
        rows = _rows(done, reward=lambda token: 1.0 if token % 2 == 0 else -1.0, temperature=1.0)
        result = trainer.forward_backward(rows, "policy_gradient", key=f"f{step}")
        assert result.sums["logprob_delta_max"] < 1e-4
        trainer.optim_step(learning_rate=2e-2, key=f"s{step}")
        sampler.put(step + 1, trainer.adapter_state(), trainer.scaling)
    assert shares[0] < 0.65 and shares[-1] > 0.85
    sampler.close()


def test_learning_and_serving_share_one_base_model(model):
    """A trainer at work does not change a token of what the base and an earlier version serve."""
    sampler = EmbeddedSampler(model)
    trainer = EmbeddedTrainer(model, lora=LoraSettings(rank=4, alpha=8))
    before = _sample(sampler, 0)
    trainer.forward_backward(_rows(before), "cross_entropy", key="a")
    trainer.optim_step(learning_rate=5e-2, key="s")
    sampler.put(1, trainer.adapter_state(), trainer.scaling)
    first = _sample(sampler, 1)
    trainer.forward_backward(_rows(before), "cross_entropy", key="b")
    trainer.optim_step(learning_rate=5e-2, key="s2")
    assert [one.ids for one in _sample(sampler, 0)] == [one.ids for one in before]
    assert [one.ids for one in _sample(sampler, 1)] == [one.ids for one in first]
    sampler.close()


@pytest.mark.slow
def test_the_default_model_is_converted_sampled_and_recomputed(tmp_path_factory):
    """Convert from the installed package, sample 8 prompts, recompute within 1e-4 with sampler and trainer."""
    from tokenizers import Tokenizer

    cache = tmp_path_factory.mktemp("models")
    folder = models.resolve(models.DEFAULT_MODEL, cache)
    assert models.resolve(models.DEFAULT_MODEL, cache) == folder
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".lock")] == [folder.name]
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= names
    assert not {name for name in names if Path(name).suffix in {".bin", ".pt", ".gguf"}}
    base, config = models.load(folder)
    assert config.vocab_size == 49152

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    questions = ["What is the capital of France?", "Where is my parcel?", "How do I reset my password?", "Say hello."]
    prompts = [
        tuple(
            tokenizer.encode(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
        )
        for q in questions
        for _ in range(2)
    ]
    sampler = EmbeddedSampler(base, settings=SamplerSettings(threads=2))
    done = _sample(sampler, 0, prompts=prompts, temperature=0.7, max_tokens=32)
    assert "Paris" in tokenizer.decode(list(done[0].ids)) + tokenizer.decode(list(done[1].ids))
    for one, prompt in zip(done, prompts, strict=True):
        assert one.logprobs == pytest.approx(sampler.score(prompt, one.ids, version=0, temperature=0.7), abs=1e-4)
    trainer = EmbeddedTrainer(base)
    assert _worst_mismatch(trainer, done, "v0", prompts=prompts, temperature=0.7) < 1e-4
    trainer.optim_step(learning_rate=1e-3, key="s")
    sampler.put(1, trainer.adapter_state(), trainer.scaling)
    after = _sample(sampler, 1, prompts=prompts, temperature=0.7, max_tokens=16)
    assert _worst_mismatch(trainer, after, "v1", prompts=prompts, temperature=0.7) < 1e-4
    sampler.close()

"""The fused step against the transformers module it replaces, per architecture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from practicum.engines.embedded.kv import PromptCache, SlotCache
from practicum.engines.embedded.step import FusedStep, ModuleStep, Step, step_of

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CONFIGS = [
    LlamaConfig(**SIZES, tie_word_embeddings=True),
    LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    MistralConfig(**SIZES, sliding_window=None),
    Qwen2Config(**SIZES),
    Qwen3Config(**SIZES, head_dim=8),
]


def build(config: PretrainedConfig) -> Any:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval().requires_grad_(False)
    for parameter in model.parameters():  # norms of 1 and biases of 0 would hide a mistake
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def prompt_then_tokens(step: Step, prompts: list[list[int]], new: list[list[int]]) -> list[torch.Tensor]:
    """Logits after each prompt and after each of the further tokens, decoded together."""
    slots, found = SlotCache(), []
    for slot, ids in enumerate(prompts):
        cache = PromptCache(len(ids))
        mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
        positions = torch.arange(len(ids))[None]
        found.append(step(torch.tensor([ids]), positions, mask, cache, torch.tensor([0, len(ids) - 1])))
        slots.place(slot, cache.kv, len(ids))
    lengths = torch.tensor([len(ids) for ids in prompts])
    for tokens in new:
        end = int(lengths.max()) + 1
        slots.reserve(len(prompts), end)
        slots.aim(0, lengths)
        mask = torch.arange(end)[None, :] <= lengths[:, None]
        found.append(step(torch.tensor(tokens)[:, None], lengths[:, None], mask[:, None, None], slots, 1))
        lengths = lengths + 1
    return found


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_equals_the_module(config: PretrainedConfig) -> None:
    model = build(config)
    fused = step_of(model)
    assert isinstance(fused, FusedStep)
    prompts, new = [[3, 5, 7, 11], [2, 4, 8, 16, 32, 1, 9]], [[6, 7], [50, 1], [13, 14]]
    with torch.inference_mode():
        ours, theirs = (prompt_then_tokens(step, prompts, new) for step in (fused, ModuleStep(model)))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


def test_fusing_changes_neither_the_weights_nor_their_identity() -> None:
    model = build(CONFIGS[0])
    ids = torch.tensor([[3, 5, 7]])
    before, parameters = model(input_ids=ids).logits, [id(parameter) for parameter in model.parameters()]
    bytes_before = storage_bytes(model)
    fused = FusedStep(model, packed=False)
    assert [id(parameter) for parameter in model.parameters()] == parameters
    assert torch.equal(model(input_ids=ids).logits, before)
    assert storage_bytes(model) == bytes_before
    layer = model.model.layers[0].self_attn
    layer.q_proj.weight.data.mul_(2)  # one memory: what the module sees, the step sees
    mask = torch.ones(3, 3, dtype=torch.bool).tril()[None, None]
    step = fused(ids, torch.arange(3)[None], mask, PromptCache(3), 3)
    torch.testing.assert_close(step, model(input_ids=ids).logits, atol=2e-5, rtol=1e-5)


def test_other_architectures_run_as_modules() -> None:
    config = GPT2Config(vocab_size=61, n_embd=24, n_layer=1, n_head=2, n_positions=32)
    assert isinstance(step_of(AutoModelForCausalLM.from_config(config)), ModuleStep)
    assert isinstance(step_of(build(LlamaConfig(**SIZES, hidden_act="gelu"))), ModuleStep)


def storage_bytes(model: Any) -> int:
    """Bytes of distinct memory behind the parameters."""
    storages = {parameter.untyped_storage().data_ptr(): parameter.untyped_storage() for parameter in model.parameters()}
    return sum(storage.nbytes() for storage in storages.values())

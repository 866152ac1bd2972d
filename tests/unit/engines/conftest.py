"""A small random Llama over bytes, built in milliseconds, and requests for it."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.types.tokens import SampleRequest, SamplingParams

torch.set_num_threads(1)

VOCABULARY, BOS, EOS = 259, 256, 257


def tiny_config(**overrides):
    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": 258,
        "initializer_range": 0.2,
    }
    return LlamaConfig(**{**values, **overrides})


def tiny_model(cls=LlamaForCausalLM, seed=0, **overrides):
    torch.manual_seed(seed)
    return cls(tiny_config(**overrides)).eval().requires_grad_(False)


def request_for(index, *, prompt=None, version=0, stop_ids=(), **params):
    prompt = tuple(range(1 + index, 20 + 3 * index)) if prompt is None else tuple(prompt)
    values = {"temperature": 1.0, "max_tokens": 16, "seed": index, **params}
    return SampleRequest(
        request_id=f"r{index}",
        prompt_ids=prompt,
        version=version,
        stop_ids=tuple(stop_ids),
        params=SamplingParams(**values),
    )


def random_adapter(model, seed, *, rank=4, scale=0.05):
    """Adapter tensors with an effect; scaling is the caller's."""
    from practicum.engines.embedded.adapter import linear_modules, tensor_name

    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, module in linear_modules(model).items():
        state[tensor_name(name, "A")] = torch.randn(rank, module.in_features, generator=generator) * scale * 4
        state[tensor_name(name, "B")] = torch.randn(module.out_features, rank, generator=generator) * scale * 4
    return state


@pytest.fixture
def model():
    return tiny_model()


@pytest.fixture
def make_request():
    return request_for


@pytest.fixture
def make_model():
    return tiny_model


@pytest.fixture
def make_adapter():
    return random_adapter

"""No bit of a result depends on what else is computed, and sequences that move to newer weights.

Pins: the same ids and logprobs, to the bit, alone or among others, in any order, with the prompt known or not, in a
process that begins anew; where no shape is safe sequences run alone; after `move` every token is by the version it
names, with the logprob that version gives it (R7), and nothing holds the old one.
"""

import asyncio

import pytest
import torch
from transformers import LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from practicum.engines.embedded.sampler import EmbeddedSampler
from practicum.engines.embedded.settings import SamplerSettings
from practicum.engines.embedded.shapes import ALONE, find_shapes
from practicum.engines.embedded.step import step_of
from practicum.errors import NotFound


def _results(sampler, requests):
    return {one.request_id: (one.ids, one.logprobs, one.sampled_logprobs) for one in sampler.generate(requests)}


@pytest.mark.parametrize("packed", [True, False])
def test_no_bit_depends_on_the_neighbours(model, make_request, packed):
    settings = SamplerSettings(prefill_chunk_tokens=32, packed_weights=packed)
    stem = tuple(range(50))
    requests = [make_request(i, max_tokens=4 + 7 * (i % 5), top_p=0.9 if i % 2 else 1.0) for i in range(9)]
    requests += [make_request(20 + i, prompt=(*stem, *range(i)), max_tokens=20) for i in range(6)]
    alone = {}
    for request in requests:
        sampler = EmbeddedSampler(model, settings=settings)
        alone |= _results(sampler, [request])
        sampler.close()
    sampler = EmbeddedSampler(model, settings=settings)
    for order in (requests, requests[::-1], requests[::2] + requests[1::2]):  # the second time every prompt is known
        assert _results(sampler, order) == alone
    for request in requests[-3:]:
        ids = alone[request.request_id][0]
        longer = make_request(90, prompt=(*request.prompt_ids, *ids, 5), max_tokens=9)  # begins with what was sampled
        fresh = EmbeddedSampler(model, settings=settings)
        assert _results(sampler, [longer]) == _results(fresh, [longer])
        fresh.close()
    sampler.close()


def test_other_architectures_are_as_exact(make_request):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=259,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    sampler = EmbeddedSampler(model)
    requests = [make_request(i, max_tokens=5 + i) for i in range(11)]
    together = _results(sampler, requests)
    assert {key: value for one in requests for key, value in _results(sampler, [one]).items()} == together
    sampler.close()


def test_a_version_of_which_every_weight_was_trained_is_as_exact(model, make_model, make_request):
    sampler = EmbeddedSampler(model)
    sampler.put(1, dict(make_model(seed=5).named_parameters()), 1.0)
    requests = [make_request(i, version=1, max_tokens=5 + i) for i in range(11)]
    together = _results(sampler, requests)
    assert {key: value for one in requests for key, value in _results(sampler, [one]).items()} == together
    assert together != _results(sampler, [make_request(i, max_tokens=5 + i) for i in range(11)])
    sampler.close()


class Uneven:
    """A step whose last bits depend on how many sequences it is given."""

    def __init__(self, step):
        self.step = step

    def __call__(self, ids, positions, mask, cache, keep):
        return self.step(ids, positions, mask, cache, keep) * (1 + 1e-6 * len(ids))


def test_where_no_shape_is_safe_sequences_run_alone(model):
    asked = {"vocabulary": 259, "most_rows": 32, "chunk": 64, "most_keys": 512}
    assert find_shapes(Uneven(step_of(model).first_layer()), **asked).rows == ALONE.rows == 0
    assert find_shapes(step_of(model).first_layer(), **asked).rows > 0


class UnevenModel(LlamaForCausalLM):
    """The same as a model."""

    def forward(self, input_ids, **arguments):
        output = super().forward(input_ids, **arguments)
        output.logits.mul_(1 + 1e-3 * len(input_ids))
        return output


def test_a_model_for_which_none_is_safe_gives_the_same_alone_and_together(make_model, make_request):
    requests = [make_request(i, max_tokens=12) for i in range(5)]
    model = make_model(UnevenModel)
    sampler = EmbeddedSampler(model, settings=SamplerSettings(prefill_chunk_tokens=32))
    together = _results(sampler, requests)
    assert {key: value for one in requests for key, value in _results(sampler, [one]).items()} == together
    sampler.close()
    free = EmbeddedSampler(model, settings=SamplerSettings(prefill_chunk_tokens=32, batch_invariant=False))
    assert _results(free, requests) != together
    free.close()


async def test_there_and_back_is_no_circle(model, make_request, make_adapter):
    sampler = EmbeddedSampler(model)
    for version in (1, 2):
        sampler.put(version, make_adapter(model, version), 1.0)
    sampler.move(1, 2)
    sampler.move(2, 1)
    for asked in (1, 2):
        assert {chunk.version for chunk in await _chunks(sampler, make_request(3, version=asked))} == {1}
    sampler.close()


async def _chunks(sampler, request, reached=None):
    found = []
    async for chunk in sampler.sample(request):
        found.append(chunk)
        if reached is not None and len(found) == 10:
            reached.set()
    return found


async def test_what_is_in_flight_goes_on_under_the_newer_weights(model, make_request, make_adapter):
    sampler = EmbeddedSampler(model, settings=SamplerSettings(max_slots=4))
    sampler.put(1, make_adapter(model, 1), 1.0)
    sampler.put(2, make_adapter(model, 2), 1.0)
    with pytest.raises(NotFound):
        sampler.move(1, 7)
    requests = [make_request(i, version=1, max_tokens=150 + i) for i in range(7)]  # three of them wait for a slot
    begun = asyncio.Event()
    streams = [asyncio.create_task(_chunks(sampler, request, begun)) for request in requests]
    await begun.wait()
    moved = await asyncio.to_thread(sampler.move, 1, 2)
    later = await _chunks(sampler, make_request(9, version=1))
    found = await asyncio.gather(*streams)
    assert moved == 7 and sampler.weights.acquire(1).users == 1
    assert {chunk.version for chunk in later} == {2}
    assert any(len({chunk.version for chunk in chunks}) == 2 for chunks in found)
    for request, chunks in zip(requests, found, strict=True):
        versions = [chunk.version for chunk in chunks]
        assert versions == sorted(versions) and versions[-1] == 2 and chunks[-1].finish_reason == "length"
        ids = [token for chunk in chunks for token in chunk.ids]
        assert len(ids) == request.params.max_tokens
        said = [value for chunk in chunks for value in chunk.logprobs]
        scored = {version: await sampler.logprobs(request.prompt_ids, ids, version=version) for version in (1, 2)}
        expected = [scored[version][at] for at, version in enumerate(versions)]
        assert said == pytest.approx(expected, abs=1e-4)
        assert said[-1] != pytest.approx(scored[1][-1], abs=1e-4)
    await sampler.load(1, None, "gone")  # nothing to load: what asks for it is sampled under 2
    sampler.stay()
    assert {chunk.version for chunk in await _chunks(sampler, make_request(9, version=1))} == {1}
    sampler.close()

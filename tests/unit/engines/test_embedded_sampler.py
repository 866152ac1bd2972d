"""The sampler: continuous batching, versions side by side, seeds, stops, cancellation, failures.

Pins: a request's tokens do not depend on its neighbours; keys and values are never shared between versions (L11); what
is served is what was loaded (L12); an engine crash reaches every waiter (W17); a disconnect frees the slot (W13).
"""

import asyncio
import time

import pytest
import torch
from transformers import LlamaForCausalLM

from practicum.engines.embedded.sampler import EmbeddedSampler
from practicum.engines.embedded.settings import SamplerSettings
from practicum.errors import ContextOverflow, EngineError, NotFound, RequestError

POISON = 250


@pytest.fixture
def sampler(model):
    made = EmbeddedSampler(model)
    yield made
    made.close()


def _same(one, two, atol=1e-4):
    assert one.ids == two.ids
    assert one.finish_reason == two.finish_reason
    torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(two.logprobs), atol=atol, rtol=0)


def test_logprobs_equal_a_plain_forward(model, sampler, make_request):
    for temperature in (1.0, 0.6, 0.0):
        request = make_request(3, temperature=temperature)
        done = sampler.generate([request])[0]
        ids = torch.tensor([[*request.prompt_ids, *done.ids]])
        logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1] / (temperature or 1.0)
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(done.ids)[:, None]).squeeze(1)
        torch.testing.assert_close(torch.tensor(done.logprobs), expected, atol=1e-4, rtol=0)
        assert done.sampled_logprobs == done.logprobs
        scored = sampler.score(request.prompt_ids, done.ids, version=0, temperature=temperature)
        torch.testing.assert_close(torch.tensor(scored), expected, atol=1e-4, rtol=0)


def test_greedy_equals_transformers_generate(model, sampler, make_request):
    request = make_request(5, temperature=0.0, max_tokens=20)
    done = sampler.generate([request])[0]
    expected = model.generate(
        torch.tensor([request.prompt_ids]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=258
    )
    assert list(done.ids) == expected[0, len(request.prompt_ids) :].tolist()


def test_truncated_sampling_keeps_both_logprobs(sampler, make_request):
    done = sampler.generate([make_request(2, top_p=0.7, top_k=20, max_tokens=24)])[0]
    assert all(kept >= raw for kept, raw in zip(done.sampled_logprobs, done.logprobs, strict=True))
    assert any(kept > raw + 0.1 for kept, raw in zip(done.sampled_logprobs, done.logprobs, strict=True))
    scored = sampler.score(make_request(2).prompt_ids, done.ids, version=0)
    assert done.logprobs == pytest.approx(scored, abs=1e-4)


def test_a_request_alone_and_among_others_gives_the_same(model, make_request):
    settings = {
        "plain": SamplerSettings(),
        "no prefix cache, small chunks": SamplerSettings(prefix_cache_mb=0, prefill_chunk_tokens=7),
        "two slots": SamplerSettings(max_slots=2),
    }
    requests = [make_request(i, max_tokens=6 + 5 * (i % 4), top_p=0.9 if i % 2 else 1.0) for i in range(9)]
    alone = []
    for request in requests:
        sampler = EmbeddedSampler(model)
        alone += sampler.generate([request])
        sampler.close()
    for each in settings.values():
        sampler = EmbeddedSampler(model, settings=each)
        for order in (requests, requests[::-1]):
            found = {done.request_id: done for done in sampler.generate(order)}
            for expected in alone:
                _same(found[expected.request_id], expected)
        assert sampler.figures["running"] == 0
        sampler.close()


def test_capacity_grows_past_a_block_among_neighbours(sampler, make_request):
    long = make_request(0, prompt=range(200), max_tokens=150)
    alone = sampler.generate([long])[0]
    together = sampler.generate([make_request(4, max_tokens=90), long, make_request(6, max_tokens=9)])
    _same(together[1], alone)
    assert len(alone.ids) == 150


def test_samples_of_a_group_share_the_prompts_work(sampler, make_request):
    prompt = tuple(range(100))
    group = [make_request(i, prompt=prompt) for i in range(6)]
    done = sampler.generate(group)
    assert sampler.figures["reused_tokens"] == 5 * 100
    assert sampler.figures["prefilled_tokens"] == 100
    assert len({one.ids for one in done}) == 6
    extended = make_request(50, prompt=(*prompt, *done[0].ids, 7, 8, 9))
    again = sampler.generate([extended])[0]
    assert sampler.figures["reused_tokens"] == 5 * 100 + 100
    fresh = EmbeddedSampler(sampler.weights.acquire(0).model)
    _same(again, fresh.generate([extended])[0])
    fresh.close()


def test_the_same_seed_repeats_and_no_seed_varies(sampler, make_request):
    first, second = sampler.generate([make_request(1, seed=5)])[0], sampler.generate([make_request(1, seed=5)])[0]
    assert first.ids == second.ids
    free = {done.ids for done in sampler.generate([make_request(1, seed=None) for _ in range(4)])}
    assert len(free) == 4


def test_stop_ids_end_and_are_on_record(sampler, make_request):
    plain = sampler.generate([make_request(1, max_tokens=30)])[0]
    stop = plain.ids[10]
    first = plain.ids.index(stop)
    done = sampler.generate([make_request(1, max_tokens=30, stop_ids=[stop, 999])])[0]
    assert done.ids == plain.ids[: first + 1]
    assert done.finish_reason == "stop"
    assert plain.finish_reason == "length" and len(plain.ids) == 30


def test_the_context_ends_a_completion_and_refuses_a_prompt(model, make_request):
    sampler = EmbeddedSampler(model, settings=SamplerSettings(context_length=40))
    assert sampler.context_length == 40
    done = sampler.generate([make_request(0, prompt=range(30), max_tokens=100)])[0]
    assert len(done.ids) == 10 and done.finish_reason == "length"
    with pytest.raises(ContextOverflow):
        sampler.generate([make_request(0, prompt=range(40))])
    sampler.close()


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": ()},
        {"prompt": (1, 259)},
        {"prompt": (-1,)},
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"min_p": -0.1},
        {"min_p": 1.5},
    ],
)
def test_a_request_that_cannot_run_is_refused(bad, sampler, make_request):
    with pytest.raises(RequestError):
        sampler.generate([make_request(0, **bad)])
    assert sampler.healthy


def test_an_unknown_version_is_refused(sampler, make_request):
    with pytest.raises(NotFound, match="version 3"):
        sampler.generate([make_request(0, version=3)])


def test_versions_side_by_side_do_not_mix(model, sampler, make_request, make_adapter):
    for version in (1, 2):
        sampler.put(version, make_adapter(model, version), 1.0)
    prompt = tuple(range(60))
    requests = [make_request(i, prompt=prompt, version=i % 3, seed=0, max_tokens=20) for i in range(9)]
    done = sampler.generate(requests)
    by_version = [{one.ids for one in done if one.version == version} for version in range(3)]
    assert [len(ids) for ids in by_version] == [1, 1, 1]
    assert len(set.union(*by_version)) == 3
    for one in done:
        scored = sampler.score(prompt, one.ids, version=one.version)
        assert one.logprobs == pytest.approx(scored, abs=1e-4)
        other = sampler.score(prompt, one.ids, version=(one.version + 1) % 3)
        assert max(abs(a - b) for a, b in zip(one.logprobs, other, strict=True)) > 1e-2


def test_refreshed_weights_are_what_is_sampled_from(model, sampler, make_request, make_adapter):
    """The prefix cache of the old weights is not used under the new ones (L11)."""
    prompt = tuple(range(80))
    for seed in (1, 2, 3):
        sampler.put(1, make_adapter(model, seed), 1.0)
        done = sampler.generate([make_request(i, prompt=prompt, version=1) for i in range(3)])
        fresh = EmbeddedSampler(model)
        fresh.put(1, make_adapter(model, seed), 1.0)
        for one in done:
            assert one.logprobs == pytest.approx(fresh.score(prompt, one.ids, version=1), abs=1e-4)
        fresh.close()


async def _collect(sampler, request):
    return [chunk async for chunk in sampler.sample(request)]


async def test_streams_carry_one_token_a_chunk_and_one_finish_reason(sampler, make_request):
    chunks = await _collect(sampler, make_request(1))
    direct = sampler.generate([make_request(1)])[0]
    assert tuple(token for chunk in chunks for token in chunk.ids) == direct.ids
    assert [chunk.finish_reason for chunk in chunks] == [None] * 15 + ["length"]
    assert {chunk.version for chunk in chunks} == {0}


async def test_closing_the_stream_frees_the_slot(sampler, make_request):
    stream = sampler.sample(make_request(1, max_tokens=400))
    await anext(stream)
    await anext(stream)
    assert sampler.figures["running"] == 1
    await stream.aclose()
    before = sampler.figures["decoded_tokens"]
    for _ in range(200):
        if sampler.figures["pending"] == 0:
            break
        await asyncio.sleep(0.01)
    assert sampler.figures["pending"] == sampler.figures["running"] == 0
    assert sampler.figures["decoded_tokens"] <= before + 2
    assert sampler.weights.acquire(0).users == 1


async def test_cancelling_the_task_frees_a_waiting_request(model, make_request):
    sampler = EmbeddedSampler(model, settings=SamplerSettings(max_slots=1))
    running = asyncio.create_task(_collect(sampler, make_request(1, max_tokens=300)))
    waiting = asyncio.create_task(_collect(sampler, make_request(2)))
    await asyncio.sleep(0.05)
    waiting.cancel()
    running.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert (await _collect(sampler, make_request(3)))[-1].finish_reason == "length"
    sampler.close()


async def test_an_overfull_queue_refuses_clearly(model, make_request):
    sampler = EmbeddedSampler(model, settings=SamplerSettings(max_slots=1, max_waiting=2))
    tasks = [asyncio.create_task(_collect(sampler, make_request(i, max_tokens=200))) for i in range(6)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [result for result in results if isinstance(result, EngineError)]
    assert len(refused) == 3
    assert all(error.code == "engine_overloaded" for error in refused)
    assert sampler.healthy
    assert (await _collect(sampler, make_request(9)))[-1].finish_reason == "length"
    sampler.close()


async def test_a_version_is_loaded_while_streams_run(model, sampler, make_request, make_adapter, tmp_path):
    from practicum.engines.embedded.adapter import write_adapter
    from practicum.engines.embedded.settings import LoraSettings

    lora = LoraSettings(rank=4, alpha=4)
    digest = write_adapter(tmp_path / "v1", make_adapter(model, 1), lora, base_model="tiny")
    expected = [sampler.generate([make_request(i, max_tokens=120)])[0] for i in range(3)]
    streams = [asyncio.create_task(_collect(sampler, make_request(i, max_tokens=120))) for i in range(3)]
    await asyncio.sleep(0.02)
    await sampler.load(1, tmp_path / "v1", digest)
    new = await _collect(sampler, make_request(0, version=1, max_tokens=120))
    for task, one in zip(streams, expected, strict=True):
        chunks = await task
        assert tuple(token for chunk in chunks for token in chunk.ids) == one.ids
        assert {chunk.version for chunk in chunks} == {0}
    ids = tuple(token for chunk in new for token in chunk.ids)
    assert ids != expected[0].ids
    scored = await sampler.logprobs(make_request(0).prompt_ids, ids, version=1)
    assert [value for chunk in new for value in chunk.logprobs] == pytest.approx(scored, abs=1e-4)


class Poisoned(LlamaForCausalLM):
    """Fails whenever one id goes through it: with an error, a NaN, or by killing the thread."""

    mode = "error"

    def forward(self, input_ids, **arguments):
        output = super().forward(input_ids, **arguments)
        if (input_ids == POISON).any():
            if self.mode == "error":
                raise RuntimeError("this id is poison")
            if self.mode == "die":
                raise SystemExit("the thread is killed")
            rows = (input_ids == POISON).any(-1)
            output.logits[rows] = float("nan")
        return output


@pytest.mark.parametrize("mode", ["error", "nan"])
def test_one_poisoned_prompt_fails_alone(mode, make_model, make_request):
    model = make_model(Poisoned)
    model.mode = mode
    sampler = EmbeddedSampler(model)
    clean = sampler.generate([make_request(i) for i in range(3)])
    done = sampler.generate([make_request(0), make_request(9, prompt=(1, 2, POISON)), make_request(1), make_request(2)])
    assert done[1].finish_reason == "error" and done[1].ids == () and done[1].error
    for index, one in zip((0, 2, 3), clean, strict=True):
        _same(done[index], one)
    assert sampler.healthy and sampler.figures["pending"] == 0
    sampler.close()


@pytest.mark.parametrize("mode", ["error", "nan"])
def test_one_sequence_that_fails_while_decoding_fails_alone(mode, make_model, make_request):
    model = make_model(Poisoned)
    model.mode = mode
    sampler = EmbeddedSampler(model)
    requests = [make_request(i, max_tokens=60) for i in range(6)]
    healthy = EmbeddedSampler(make_model())
    expected = healthy.generate(requests)
    assert any(POISON in one.ids for one in expected) and any(POISON not in one.ids for one in expected)
    for one, clean in zip(sampler.generate(requests), expected, strict=True):
        if POISON in clean.ids[:-1]:
            cut = clean.ids.index(POISON) + 1
            assert one.ids == clean.ids[:cut] and one.finish_reason == "error"
        else:
            _same(one, clean)
    assert sampler.healthy and sampler.figures["pending"] == 0
    sampler.close()
    healthy.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_the_death_of_the_engine_reaches_every_waiter(make_model, make_request):
    model = make_model(Poisoned)
    model.mode = "die"
    sampler = EmbeddedSampler(model)
    streams = [
        asyncio.create_task(_collect(sampler, make_request(i, prompt=(1, 2, 3), max_tokens=400))) for i in range(3)
    ]
    await asyncio.sleep(0.05)
    streams.append(asyncio.create_task(_collect(sampler, make_request(9, prompt=(1, POISON)))))
    results = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 20)
    assert all(isinstance(result, EngineError) for result in results), results
    assert not sampler.healthy
    with pytest.raises(EngineError, match="killed"):
        await _collect(sampler, make_request(1))
    with pytest.raises(EngineError, match="killed"):
        sampler.generate([make_request(1)])
    assert sampler.weights.acquire(0).users == 1


async def test_closing_ends_what_runs(model, make_request):
    sampler = EmbeddedSampler(model)
    stream = asyncio.create_task(_collect(sampler, make_request(1, max_tokens=400)))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(sampler.close)
    with pytest.raises(EngineError, match="closed"):
        await stream
    with pytest.raises(EngineError, match="closed"):
        sampler.generate([make_request(1)])


def test_memory_bounds_how_many_run_together(model, make_request):
    """1 MB holds 2048 positions of this model: two sequences of 500, never three; a lone one always runs."""
    sampler = EmbeddedSampler(model, settings=SamplerSettings(kv_budget_mb=1, prefix_cache_mb=0))
    most = 0
    requests = [make_request(i, max_tokens=450) for i in range(5)]
    import threading

    results = []
    worker = threading.Thread(target=lambda: results.extend(sampler.generate(requests)))
    worker.start()
    while worker.is_alive():
        most = max(most, sampler.figures["running"])
        time.sleep(0.005)
    worker.join()
    assert 1 < most <= 4
    assert all(len(one.ids) == 450 for one in results)
    sampler.close()


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_other_families_run_the_same_way(family, make_request):
    import transformers

    prefix = {"qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    config = getattr(transformers, f"{prefix}Config")(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.2,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval().requires_grad_(False)
    sampler = EmbeddedSampler(model, settings=SamplerSettings(prefill_chunk_tokens=5))
    requests = [make_request(i) for i in range(4)]
    for request, done in zip(requests, sampler.generate(requests), strict=True):
        ids = torch.tensor([[*request.prompt_ids, *done.ids]])
        logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(done.ids)[:, None]).squeeze(1)
        torch.testing.assert_close(torch.tensor(done.logprobs), expected, atol=1e-4, rtol=0)
    sampler.close()

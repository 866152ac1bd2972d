"""The Sampler seam over the embedded engine, and the same engine called directly by a learner in the same process.

The async side is a thin shell: it validates, hands a job to the engine's thread, and passes on what comes out.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from practicum.engines.constraints import Constraints, Matcher
from practicum.engines.embedded import models
from practicum.engines.embedded.decode import Scheduler
from practicum.engines.embedded.engine import EngineThread
from practicum.engines.embedded.jobs import Emit, Generation, Scoring, fresh_seed
from practicum.engines.embedded.settings import SamplerSettings
from practicum.engines.embedded.weights import PolicyWeights
from practicum.errors import ContextOverflow, RequestError
from practicum.renderers import ChatTokenizer
from practicum.types.tokens import FinishReason, SampleRequest, SamplingParams, TokenChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole completion: `ids`, `logprobs`, `sampled_logprobs`, `versions`: [T]. `error` says why it has none or only
    a part. `version` is the one asked for; `versions` are those that sampled each token.
    """

    request_id: str
    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    sampled_logprobs: tuple[float | None, ...]
    version: int
    finish_reason: FinishReason
    versions: tuple[int, ...] = ()
    error: str | None = None


class EmbeddedSampler:
    """Samples from one base model under any number of policy versions. Satisfies `types.seams.Sampler`.

    `tokenizer` is the model's; without it, requests with a constraint are refused.
    """

    def __init__(
        self,
        model: Any,
        *,
        settings: SamplerSettings | None = None,
        weights: PolicyWeights | None = None,
        tokenizer: ChatTokenizer | None = None,
    ) -> None:
        self._settings = settings or SamplerSettings()
        self._vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self._constraints = Constraints(tokenizer, self._vocabulary)
        self._constraints.warm()
        own = models.context_length(model.config)
        self._context_length = min(own, self._settings.context_length or own)
        self.weights = weights or PolicyWeights(
            model, max_resident=self._settings.max_versions, packed=self._settings.packed_weights
        )
        self._moved: dict[int, int] = {}
        # One thread merges all versions: what one leaves free, the next takes; each thread's allocator keeps its own.
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="practicum-loader")
        self._scheduler = Scheduler(
            self.weights,
            self._settings,
            kv_bytes_per_token=_kv_bytes_per_token(model.config, model.dtype),
            vocabulary=self._vocabulary,
            context_length=self._context_length,
        )
        self._engine = EngineThread(
            self._scheduler,
            max_pending=self._settings.max_slots + self._settings.max_waiting,
            threads=self._settings.threads,
        )

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        return self._context_length

    @property
    def healthy(self) -> bool:
        """Whether requests are taken; False for good once the engine's thread died."""
        return self._engine.healthy

    @property
    def figures(self) -> dict[str, int]:
        """Counters: prompt tokens processed and reused, tokens sampled, sequences running, jobs not yet ended."""
        scheduler = self._scheduler
        return {
            "prefilled_tokens": scheduler.prefilled_tokens,
            "reused_tokens": scheduler.reused_tokens,
            "decoded_tokens": scheduler.decoded_tokens,
            "running": scheduler.running,
            "pending": scheduler.load,
        }

    async def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        """Stream one completion, a token a chunk. Closing the iterator frees its slot before the next step.

        Raises: NotFound, RequestError, ContextOverflow, Unsupported, MissingExtra, EngineError.
        """
        self._limit(request)
        matcher = await self._constraints.prepared(request.params.constraint, request.stop_ids)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[TokenChunk | Exception] = asyncio.Queue()

        def hand_over(event: TokenChunk | Exception) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        job = self._submit(request, hand_over, matcher)
        try:
            while True:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self._engine.cancel(job)

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Sample all requests, batched, and return their completions in order. A failed one carries its error.

        Raises: NotFound, RequestError, ContextOverflow before anything is sampled; EngineError if the engine failed.
        """
        matchers = [self._matcher(request) for request in requests]
        events: queue.SimpleQueue[tuple[int, TokenChunk | Exception]] = queue.SimpleQueue()

        def relay(index: int) -> Emit:
            return lambda event: events.put((index, event))

        jobs: list[Generation] = []
        chunks: list[list[TokenChunk]] = [[] for _ in requests]
        errors: dict[int, Exception] = {}
        try:
            for index, (request, matcher) in enumerate(zip(requests, matchers, strict=True)):
                jobs.append(self._submit(request, relay(index), matcher, bounded=False))
            open_jobs = len(jobs)
            while open_jobs:
                index, event = events.get()
                if isinstance(event, Exception):
                    errors[index] = event
                    open_jobs -= 1
                else:
                    chunks[index].append(event)
                    open_jobs -= event.finish_reason is not None
        finally:
            for job in jobs:
                self._engine.cancel(job)
        if errors and not self.healthy:
            raise next(iter(errors.values()))
        return [
            _completion(request, parts, errors.get(index))
            for index, (request, parts) in enumerate(zip(requests, chunks, strict=True))
        ]

    async def load(self, version: int, adapter_path: Path | None, digest: str) -> None:
        """Make a version servable beside the others, prepared in a worker thread while decoding goes on.

        Of one that was moved on from, nothing is needed any more.

        Raises: CorruptArtifact, with every other version as it was; Conflict if the number has other weights.
        """
        if version not in self._moved:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._loader, self.weights.load, version, adapter_path, digest)

    def put(self, version: int, adapter_state: Mapping[str, torch.Tensor], scaling: float) -> None:
        """Make or refresh a version from a trainer's tensors (`EmbeddedTrainer.adapter_state`)."""
        self.weights.put(version, adapter_state, scaling)

    def move(self, old: int, new: int) -> int:
        """Let what waits, runs or is still to come under version `old` be sampled under `new`, from the next token on.

        Takes effect between two steps; blocks until then. Keys and values of prompt and sampled tokens are computed
        anew, a seed goes on at its next index, and each chunk names the version that sampled it. What happens to one
        sequence on the way ends that sequence alone. Returns how many moved; none of them holds `old` any more.
        Scorings stay with the version they ask for.

        Raises: NotFound if `new` is not resident (nothing moved), EngineError if the engine is down.
        """
        before = self._moved
        if old != new:  # first, so that nothing slips in between; without a way back, so that no chain is a circle
            self._moved = {asked: now for asked, now in before.items() if asked != new} | {old: new}
        try:
            return self._engine.between_steps(lambda scheduler: scheduler.move(old, new)).result()
        except BaseException:  # nothing moved
            self._moved = before
            raise

    def stay(self) -> None:
        """From now on a request is sampled under the version that it asks for, whatever was moved before."""
        self._moved = {}

    async def logprobs(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, version: int, temperature: float = 1.0
    ) -> list[float]:
        """Raw tempered logprobs [T] of the completion under a version, recomputed; waits its turn among prompts."""
        return await asyncio.wrap_future(self._score(prompt_ids, completion_ids, version, temperature))

    def score(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, version: int, temperature: float = 1.0
    ) -> list[float]:
        """`logprobs` for a caller without an event loop."""
        return self._score(prompt_ids, completion_ids, version, temperature).result()

    def close(self) -> None:
        """Stop the engine's thread; running requests end with an EngineError."""
        self._engine.close()
        self._loader.shutdown(wait=False)
        self._constraints.close()

    def _matcher(self, request: SampleRequest) -> Matcher | None:
        self._limit(request)
        constraint = request.params.constraint
        return None if constraint is None else self._constraints.matcher(constraint, request.stop_ids)

    def _submit(
        self, request: SampleRequest, emit: Emit, matcher: Matcher | None, *, bounded: bool = True
    ) -> Generation:
        limit = self._limit(request)
        seed = fresh_seed() if request.params.seed is None else request.params.seed
        served = self.weights.acquire(self._current(request.version))
        job = Generation(request=request, served=served, emit=emit, limit=limit, seed=seed, matcher=matcher)
        try:
            self._engine.submit(job, bounded=bounded)
        except BaseException:
            self.weights.release(served)
            raise
        return job

    def _current(self, version: int) -> int:
        moved = self._moved
        while version in moved:
            version = moved[version]
        return version

    def _score(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], version: int, temperature: float
    ) -> Future[list[float]]:
        ids = (*prompt_ids, *completion_ids)
        self._check_ids(prompt_ids, ids)
        if len(ids) > self._context_length:
            raise ContextOverflow(f"{len(ids)} tokens to score; the context holds {self._context_length}.")
        result: Future[list[float]] = Future()
        if not completion_ids:
            result.set_result([])
            return result
        served = self.weights.acquire(version)
        job = Scoring(ids, len(prompt_ids), temperature if temperature > 0 else 1.0, served, result)
        try:
            self._engine.submit(job, bounded=False)
        except BaseException:
            self.weights.release(served)
            raise
        return result

    def _limit(self, request: SampleRequest) -> int:
        """Tokens this request may sample. Raises RequestError or ContextOverflow for one that cannot run."""
        params = request.params
        self._check_ids(request.prompt_ids, request.prompt_ids)
        _check_params(params)
        room = self._context_length - len(request.prompt_ids)
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(request.prompt_ids)} tokens; the context holds {self._context_length}, "
                "completion included.",
                param="messages",
            )
        return min(params.max_tokens, room)

    def _check_ids(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> None:
        if not prompt_ids:
            raise RequestError("the prompt is empty.", param="prompt_ids")
        if min(ids) < 0 or max(ids) >= self._vocabulary:
            raise RequestError(f"an id is outside the vocabulary of {self._vocabulary}.", param="prompt_ids")


def _check_params(params: SamplingParams) -> None:
    if params.max_tokens < 1:
        raise RequestError(f"max_tokens is {params.max_tokens}; it must be 1 or more.", param="max_tokens")
    if not 0 <= params.temperature < float("inf"):
        raise RequestError(f"temperature is {params.temperature}; it must be 0 or more.", param="temperature")
    if not 0 < params.top_p <= 1:
        raise RequestError(f"top_p is {params.top_p}; it must be above 0 and at most 1.", param="top_p")
    if not 0 <= params.min_p <= 1:
        raise RequestError(f"min_p is {params.min_p}; it must be 0 (off) to 1.", param="min_p")
    if params.top_k < 0:
        raise RequestError(f"top_k is {params.top_k}; it must be 0 (off) or more.", param="top_k")


def _completion(request: SampleRequest, parts: Sequence[TokenChunk], error: Exception | None) -> Completion:
    last = parts[-1].finish_reason if parts else None
    return Completion(
        request_id=request.request_id,
        ids=tuple(token for part in parts for token in part.ids),
        logprobs=tuple(value for part in parts for value in part.logprobs),
        sampled_logprobs=tuple(value for part in parts for value in part.sampled_logprobs),
        version=request.version,
        versions=tuple(part.version for part in parts for _ in part.ids),
        finish_reason="error" if error is not None or last is None else last,
        error=None if error is None else str(error),
    )


def _kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * dtype.itemsize)

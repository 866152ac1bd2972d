"""The scheduler: which tokens go through the model next. Synchronous, single-threaded, no I/O.

One `step`: drop what was cancelled; process a bounded piece of waiting prompts; then, for each version in turn, decode
one token for all of its running sequences. A prompt is processed alone (a matrix product over its tokens fills the
processor already), in chunks, so running sequences never wait for a long prompt. Which shapes the forwards have, so
that neighbours change no bit of a result, `shapes` says.

A sequence that moves to newer weights becomes a waiting prompt again, prompt and sampled tokens, at the queue's head.

What goes wrong inside one sequence ends that sequence: a batch that fails is run again one by one.
Legend: n running sequences of a version, Q tokens of a prompt chunk, K positions attended to, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from practicum.engines.embedded.draw import draw, uniform
from practicum.engines.embedded.jobs import Generation, Job, Prompt, Scoring
from practicum.engines.embedded.kv import SlotCache
from practicum.engines.embedded.prefix import PrefixCache
from practicum.engines.embedded.settings import SamplerSettings
from practicum.engines.embedded.shapes import ALONE, FREE, Shapes, find_shapes
from practicum.engines.embedded.weights import PolicyWeights, ServedVersion
from practicum.errors import EngineError

_log = logging.getLogger(__name__)

# A forward costs about as much as this many prompt tokens, however few it has.
_LEAST_COST_TOKENS = 32


@dataclass(slots=True, eq=False)
class Pool:
    """The running sequences of one version; sequence i has slot i."""

    served: ServedVersion
    cache: SlotCache = field(default_factory=SlotCache)
    running: list[Generation] = field(default_factory=list)

    def reserved_tokens(self, extra: int = 0) -> int:
        """Positions held at most: slots times the longest need; with one more sequence of `extra` if given."""
        needs = [each.need_tokens for each in self.running] + ([extra] if extra else [])
        return len(needs) * max(needs, default=0)


class Scheduler:
    """Jobs in, tokens out, one `step` at a time."""

    def __init__(
        self,
        weights: PolicyWeights,
        settings: SamplerSettings,
        *,
        kv_bytes_per_token: int,
        vocabulary: int,
        context_length: int,
    ) -> None:
        self._weights = weights
        self._settings = settings
        self._vocabulary = vocabulary
        self._context_length = context_length
        self._known_shapes = None if settings.batch_invariant else FREE
        self._budget_tokens = settings.kv_budget_mb * 2**20 // kv_bytes_per_token
        self._prefixes = PrefixCache(settings.prefix_cache_mb * 2**20)
        self._waiting: deque[Job] = deque()
        self._prompt: Prompt | None = None
        self._pools: dict[ServedVersion, Pool] = {}
        self.prefilled_tokens = 0
        self.decoded_tokens = 0

    @property
    def load(self) -> int:
        """Jobs not yet ended."""
        return len(self._waiting) + (self._prompt is not None) + self.running

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.load == 0

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return sum(len(pool.running) for pool in self._pools.values())

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that did not have to be processed again."""
        return self._prefixes.reused_tokens

    def add(self, job: Job) -> None:
        """Queue a job; it holds its version until it ends."""
        self._waiting.append(job)

    def fail_all(self, error: Exception) -> None:
        """End every job with an error."""
        jobs: list[Job] = list(self._waiting)
        jobs += [self._prompt.job] if self._prompt else []
        jobs += [each for pool in self._pools.values() for each in pool.running]
        self._waiting.clear()
        self._prompt = None
        self._pools.clear()
        for job in jobs:
            self._weights.release(job.served)
            job.fail(error)

    @torch.inference_mode()
    def step(self) -> None:
        """One round over cancelled, prompts and running sequences."""
        self._drop_cancelled()
        self._process_prompts()
        for pool in list(self._pools.values()):
            self._decode(pool)

    def move(self, old: int, new: int) -> int:
        """Go on under version `new` with what waits or runs under `old`; between steps. Returns how many did.

        Raises NotFound if `new` is not resident, with nothing moved. Scorings keep the version they asked for.
        """
        if old == new:
            return 0
        target = self._weights.acquire(new)
        running: list[Generation] = []
        for pool in [pool for pool in self._pools.values() if pool.served.version == old]:
            running += pool.running
            del self._pools[pool.served]
        if self._prompt is not None and isinstance(job := self._prompt.job, Generation) and job.served.version == old:
            running.append(job)
            self._prompt = None
        moved = running + [job for job in self._waiting if isinstance(job, Generation) and job.served.version == old]
        for job in moved:
            self._weights.release(job.served)
            job.served = self._weights.acquire(new)
        self._waiting.extendleft(reversed(running))
        self._weights.release(target)
        return len(moved)

    @property
    def _shapes(self) -> Shapes:
        if self._known_shapes is None:
            served = self._weights.acquire(0)
            try:
                self._known_shapes = find_shapes(
                    served.step.first_layer(),
                    vocabulary=self._vocabulary,
                    most_rows=self._settings.max_slots,
                    chunk=self._settings.prefill_chunk_tokens,
                    most_keys=self._context_length,
                )
            except Exception:  # the model's own, on made-up ids; what it does to a request ends that request
                _log.warning("the shapes of batches could not be tried; sequences run one at a time", exc_info=True)
                self._known_shapes = ALONE
            finally:
                self._weights.release(served)
        return self._known_shapes

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._waiting if job.cancelled]:
            self._waiting.remove(job)
            self._weights.release(job.served)
        if self._prompt is not None and self._prompt.job.cancelled:
            self._end_prompt()
        for pool in list(self._pools.values()):
            for slot in reversed(range(len(pool.running))):
                if pool.running[slot].cancelled:
                    self._free(pool, slot)

    def _end_prompt(self, error: Exception | None = None) -> None:
        assert self._prompt is not None
        job, self._prompt = self._prompt.job, None
        self._weights.release(job.served)
        if error is not None:
            job.fail(error)

    def _process_prompts(self) -> None:
        budget = left = self._settings.prefill_chunk_tokens
        while self._prompt is not None or self._admit():
            assert self._prompt is not None
            start = self._prompt.cache.filled
            end = self._chunk_end(start, len(self._prompt.ids), left)
            try:
                if self._prompt.logits is not None:
                    self._begin(self._prompt, self._prompt.logits)
                    continue
                cost = max(end - start, _LEAST_COST_TOKENS)
                if left <= 0 or (left < budget and self._settings.batch_invariant and cost > left):
                    return  # the chunk's end does not depend on what is left, so it waits for the next step
                left -= cost
                self._prompt_chunk(self._prompt, start, end)
            except Exception as error:
                self._end_prompt(_failure("processing the prompt", error))

    def _chunk_end(self, start: int, length: int, left: int) -> int:
        """Where the chunk that begins at `start` ends: where its place in the prompt says, if that must decide."""
        if not self._settings.batch_invariant:
            return min(start + max(left, 1), length)
        return min(self._next_boundary(start), length)

    def _next_boundary(self, start: int) -> int:
        chunk = self._settings.prefill_chunk_tokens
        return (start // chunk + 1) * chunk

    def _admit(self) -> bool:
        """Take the next waiting job, if a slot and memory are free."""
        if not self._waiting:
            return False
        job = self._waiting[0]
        if isinstance(job, Generation) and not self._fits(job):
            return False
        self._prompt = self._prepared(job)
        self._waiting.popleft()
        return True

    def _prepared(self, job: Job) -> Prompt:
        if isinstance(job, Generation) and (known := self._prefixes.whole(job.served, job.ids)) is not None:
            return Prompt(job, job.ids, *known)
        # A generation needs the logits of its last position, a scoring those from the end of its prompt on.
        ids = job.ids
        most = job.prompt_length - 1 if isinstance(job, Scoring) else len(ids) - 1
        chunk = self._settings.prefill_chunk_tokens
        cache = self._prefixes.start(
            job.served,
            ids,
            most=most,
            multiple=1 if self._shapes.queries else chunk,
            room=self._next_boundary(len(ids) - 1) if self._settings.batch_invariant else 0,
        )
        return Prompt(job, ids, cache)

    def _fits(self, job: Generation) -> bool:
        if not self._pools:
            return True
        if self.running >= self._settings.max_slots:
            return False
        others = sum(pool.reserved_tokens() for key, pool in self._pools.items() if key is not job.served)
        own = self._pools.get(job.served, Pool(job.served)).reserved_tokens(job.need_tokens)
        return others + own <= self._budget_tokens

    def _prompt_chunk(self, prompt: Prompt, start: int, end: int) -> None:
        job, cache, ids = prompt.job, prompt.cache, prompt.ids
        last = end == len(ids)
        wanted = job.wanted(start, end) if isinstance(job, Scoring) else range(end - 1 if last else end, end)
        rows, keys = end - start, end
        if self._settings.batch_invariant:
            rows, keys = self._shapes.chunk_rows(rows, self._settings.prefill_chunk_tokens), self._next_boundary(start)
        # Padding stands at the last real token: its rows repeat that one's and leave nothing behind.
        positions = torch.arange(start, start + rows).clamp_(max=end - 1)
        mask = torch.arange(keys)[None, :] <= positions[:, None]
        kept = [position - start for position in wanted]
        kept += kept[-1:] * (self._shapes.decode_rows(len(kept)) - len(kept))
        tokens = torch.tensor([(*ids[start:end], *([ids[end - 1]] * (rows - end + start)))])
        cache.aim(end - start, keys)
        keep = torch.tensor(kept, dtype=torch.long)
        logits = job.served.step(tokens, positions[None], mask[None, None], cache, keep)[0, : len(wanted)]
        cache.filled = end
        self.prefilled_tokens += end - start
        if isinstance(job, Scoring):
            job.collect(wanted, logits)
            if last:
                self._end_prompt()
                job.result.set_result(job.logprobs)
        elif last:
            self._begin(prompt, logits)

    def _begin(self, prompt: Prompt, logits: torch.Tensor) -> None:
        """Sample the first token from `logits: [1, V]` and give the sequence a slot."""
        job = prompt.job
        assert isinstance(job, Generation)
        drawn = draw(logits, [job.request.params], [uniform(job.seed, job.sampled)], [job.allowed()])[0]
        if drawn is None:
            raise EngineError("the model's logits are not finite after the prompt.")
        if prompt.logits is None:
            self._prefixes.keep(job.served, prompt.ids, prompt.cache.kv, logits)
        self.decoded_tokens += 1
        job.length = len(prompt.ids)
        chunk = job.accept(drawn)
        if chunk.finish_reason is not None:
            self._end_prompt()
            job.send(chunk)
            return
        pool = self._pools.get(job.served) or Pool(job.served)
        pool.cache.place(len(pool.running), prompt.cache.kv, job.length)
        pool.running.append(job)
        self._pools[job.served] = pool
        self._prompt = None
        job.send(chunk)

    def _decode(self, pool: Pool) -> None:
        n = len(pool.running)
        rows, errors = self._logits(pool)
        masks = _masks(pool.running, errors)
        healthy = [slot for slot in range(n) if slot not in errors]
        drawn = {}
        if healthy:
            jobs = [pool.running[slot] for slot in healthy]
            tokens = draw(
                rows if len(healthy) == n else rows[healthy],
                [job.request.params for job in jobs],
                [uniform(job.seed, job.sampled) for job in jobs],
                [masks[slot] for slot in healthy],
            )
            drawn = dict(zip(healthy, tokens, strict=True))
        for slot in reversed(range(n)):
            job, token = pool.running[slot], drawn.get(slot)
            if token is None:
                self._free(pool, slot)
                job.fail(errors.get(slot) or EngineError("the model's logits are not finite for this sequence."))
                continue
            self.decoded_tokens += 1
            job.length += 1
            chunk = job.accept(token)
            if chunk.finish_reason is not None:
                self._free(pool, slot)
            job.send(chunk)

    def _logits(self, pool: Pool) -> tuple[torch.Tensor, dict[int, Exception]]:
        """Logits [n, V] for every slot, and errors by slot; a failing batch is run again one by one."""
        n = len(pool.running)
        if self._shapes.rows and n > 1:
            try:
                return self._decode_forward(pool, 0, n), {}
            except Exception:  # whose fault it is shows when each runs alone
                _log.debug("a batch of %d failed and runs one by one", n, exc_info=True)
        rows: list[torch.Tensor] = []
        errors: dict[int, Exception] = {}
        for slot in range(n):
            try:
                rows.append(self._decode_forward(pool, slot, 1))
            except Exception as error:
                rows.append(torch.zeros(1, self._vocabulary))
                errors[slot] = _failure("decoding", error)
        return torch.cat(rows), errors

    def _decode_forward(self, pool: Pool, first: int, n: int) -> torch.Tensor:
        jobs = pool.running[first : first + n]
        rows = self._shapes.decode_rows(n)
        padding = [0] * (rows - n)
        positions = torch.tensor([job.length for job in jobs] + padding)
        end = self._shapes.decode_keys(max(job.length for job in jobs) + 1)
        pool.cache.reserve(max(len(pool.running), first + rows), end)
        pool.cache.aim(first, positions[:n], rows=rows, end=end)
        mask = torch.arange(end)[None, :] <= positions[:, None]
        ids = torch.tensor([job.last_id for job in jobs] + padding)
        logits = pool.served.step(ids[:, None], positions[:, None], mask[:, None, None], pool.cache, 1)
        return logits[:n, -1].float()

    def _free(self, pool: Pool, slot: int) -> None:
        last = len(pool.running) - 1
        pool.cache.vacate(slot, last, pool.running[last].length)
        job = pool.running[slot]
        pool.running[slot] = pool.running[last]
        pool.running.pop()
        if not pool.running:
            del self._pools[pool.served]
        self._weights.release(job.served)


def _masks(jobs: Sequence[Generation], errors: dict[int, Exception]) -> list[torch.Tensor | None]:
    """What each may sample next. A constraint that cannot be followed is its own sequence's error."""
    masks: list[torch.Tensor | None] = [None] * len(jobs)
    for slot, job in enumerate(jobs):
        if slot not in errors:
            try:
                masks[slot] = job.allowed()
            except Exception as error:
                errors[slot] = _failure("following the constraint", error)
    return masks


def _failure(doing: str, error: Exception) -> Exception:
    if isinstance(error, EngineError):
        return error
    failure = EngineError(f"{doing} failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure

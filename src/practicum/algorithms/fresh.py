"""Fresh answers of the policy in training to served prompts: drawn once, kept on disk, read again by a resumed run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from practicum.types.local import Completion, LocalPolicy
from practicum.types.tokens import SampleRequest, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshAnswers:
    """Draws from version `student`, which `refresh` brings to the trainer's current weights.

    `seed` makes the draws repeatable and should differ from pool to pool; `stop_ids` end an answer.
    """

    policy: LocalPolicy
    student: int
    refresh: Callable[[], None]
    stop_ids: tuple[int, ...]
    pool_file: Path
    seed: int

    def draw(
        self, prompts: Sequence[tuple[tuple[int, ...], SamplingParams]], *, max_tokens: int | None = None
    ) -> tuple[list[Completion], int]:
        """An answer to each (prompt ids, settings), in order, and how many tokens were sampled for them just now."""
        if self.pool_file.exists():
            return [
                Completion(**{**row, "ids": tuple(row["ids"]), "logprobs": tuple(row["logprobs"])})
                for row in json.loads(self.pool_file.read_text("utf-8"))
            ], 0
        self.refresh()
        answers = self.policy.generate(
            [self._request(place, ids, params, max_tokens) for place, (ids, params) in enumerate(prompts)]
        )
        fresh = self.pool_file.with_suffix(".new")
        fresh.write_text(json.dumps([asdict(answer) for answer in answers]), encoding="utf-8")
        fresh.rename(self.pool_file)
        return answers, sum(len(answer.ids) for answer in answers)

    def _request(
        self, place: int, ids: tuple[int, ...], params: SamplingParams, max_tokens: int | None
    ) -> SampleRequest:
        room = min(max_tokens or params.max_tokens, params.max_tokens)
        return SampleRequest(
            request_id=f"fresh-{place}",
            prompt_ids=ids,
            version=self.student,
            stop_ids=self.stop_ids,
            params=replace(params, stop=(), max_tokens=room, seed=self.seed * 1_000_003 + place),
        )

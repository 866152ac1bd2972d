"""Anchors are drawn once, before any update, and pull toward the live policy: teacher and student share the prompt."""

from pathlib import Path

import pytest

from practicum.algorithms.fresh import FreshAnswers
from practicum.algorithms.replay import Anchors, WithReplay
from practicum.types.local import Completion
from practicum.types.training import Batch, Datum, Stream


class Source:
    def batch(self, step: int) -> Batch:
        row = Datum(row_id="x", prompt_ids=(1,), completion_ids=(2,), weights=(1.0,))
        return Batch(streams=(Stream(loss="cross_entropy", rows=[row]),), sampled_tokens=5, facts={"a": 1.0})


class Says:
    def generate(self, requests, *, progress=None):  # type: ignore[no-untyped-def]
        return [
            Completion(request_id=r.request_id, ids=(7, 8), logprobs=(-1.0, -1.0), version=-1, finish_reason="stop")
            for r in requests
        ]

    def score(self, requests, *, progress=None):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def test_anchors_are_added_beside_the_inner_rows(tmp_path: Path) -> None:
    drawn: list[str] = []
    fresh = FreshAnswers(
        policy=Says(),
        student=-1,
        refresh=lambda: drawn.append("refreshed"),
        stop_ids=(0,),
        pool_file=tmp_path / "pool.json",
        seed=0,
    )
    source = WithReplay(Source(), Anchors([(1, 2), (3, 4), (5, 6)], fresh, max_tokens=8), rows=2, weight=0.5, seed=0)
    first, second = source.batch(0), source.batch(1)
    assert first.sampled_tokens == 5 + 6 and second.sampled_tokens == 5
    assert drawn == ["refreshed"]
    inner, replay = first.streams
    assert (inner.loss, replay.loss, replay.name) == ("cross_entropy", "distill", "replay")
    assert sum(sum(row.weights) for row in replay.rows) == pytest.approx(0.5)
    assert all(row.teacher_prompt_ids == row.prompt_ids for row in replay.rows)
    assert first.facts == {"a": 1.0}

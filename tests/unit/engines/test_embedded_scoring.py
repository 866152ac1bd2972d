"""Scores do not depend on how completions are batched, nor on whether they share a prompt's computation."""

import pytest
import torch

from practicum.engines.embedded.scoring import score
from practicum.types.local import ScoreRequest


def by_hand(model, request: ScoreRequest) -> list[float]:
    ids = torch.tensor([[*request.prompt_ids, *request.completion_ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0] / request.temperature
    logp = torch.log_softmax(logits, -1)
    start = len(request.prompt_ids)
    return [float(logp[start - 1 + t, token]) for t, token in enumerate(request.completion_ids)]


def test_shared_and_separate_prompts_give_what_one_forward_gives(model) -> None:
    prompts = [(1, 2, 3), (4, 5, 6), (7, 8, 9, 10), (11, 12)]
    requests = []
    for n, prompt in enumerate(prompts[:3]):
        for k in range(3):
            completion = tuple(20 + 7 * n + 3 * k + t for t in range(1 + k))
            requests.append(ScoreRequest(prompt_ids=prompt, completion_ids=completion, version=0, temperature=0.7))
    requests.append(ScoreRequest(prompt_ids=prompts[3], completion_ids=(50, 51, 52), version=0))
    found: dict[int, tuple[float, ...]] = {}
    for part in score(model, requests):
        found.update(part)
    assert sorted(found) == list(range(len(requests)))
    for index, request in enumerate(requests):
        assert found[index] == pytest.approx(by_hand(model, request), abs=1e-5)


def test_single_token_completions_need_no_second_forward(model) -> None:
    requests = [ScoreRequest(prompt_ids=(1, 2), completion_ids=(token,), version=0) for token in (5, 6, 7)]
    (part,) = score(model, requests)
    for index, request in enumerate(requests):
        assert part[index] == pytest.approx(by_hand(model, request), abs=1e-5)

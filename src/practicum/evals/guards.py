"""What must not get worse: general knowledge, staying on the question, well-formed answers, distance to the release."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from practicum.errors import ConfigError
from practicum.types.local import LocalPolicy, ScoreRequest
from practicum.types.messages import Message
from practicum.types.tokens import SampleRequest, SamplingParams

# The first tokens of an answer tell what it is about.
_TOPIC_TOKENS = 32

Render = Callable[[Sequence[Message]], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceItem:
    """A question with options, of which `answer` is right; scored by the likelihood of each option as the answer."""

    item_id: str
    question: str
    options: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceResult:
    """Per item [n]: probability put on the right option among the options, and whether it was the likeliest."""

    probability: tuple[float, ...]
    correct: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """Share of items whose right option was the likeliest."""
        return sum(self.correct) / len(self.correct)


def load_choices(path: Path | None) -> list[ChoiceItem]:
    """The regression suite in `path` (JSONL), or the one that ships with the package."""
    text = (files("practicum.evals") / "suites" / "general.jsonl").read_text("utf-8") if path is None else None
    try:
        rows = [json.loads(line) for line in (text or Path(path or "").read_text("utf-8")).splitlines() if line.strip()]
        return [
            ChoiceItem(
                item_id=row["id"], question=row["question"], options=tuple(row["options"]), answer=int(row["answer"])
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"The regression suite {path} cannot be read: {error!r}.",
            hint='Each line is {"id", "question", "options": [...], "answer": index}.',
        ) from error


def score_choices(
    policy: LocalPolicy,
    items: Sequence[ChoiceItem],
    version: int,
    *,
    render: Render,
    encode: Callable[[str], Sequence[int]],
    progress: Callable[[int], None] | None = None,
) -> ChoiceResult:
    """Score each option as the assistant's answer: softmax over the options of their mean logprob per token."""
    requests = []
    for item in items:
        prompt = tuple(render([Message(role="user", content=item.question)]))
        for option in item.options:
            requests.append(ScoreRequest(prompt_ids=prompt, completion_ids=tuple(encode(option)), version=version))
    scores = iter(policy.score(requests, progress=progress))
    probability, correct = [], []
    for item in items:
        means = [sum(s) / len(s) for s in (next(scores) for _ in item.options)]
        top = max(means)
        weights = [math.exp(value - top) for value in means]
        probability.append(weights[item.answer] / sum(weights))
        correct.append(float(means.index(top) == item.answer))
    return ChoiceResult(probability=tuple(probability), correct=tuple(correct))


def on_topic(
    policy: LocalPolicy,
    prompts: Sequence[tuple[int, ...]],
    answers: Sequence[tuple[int, ...]],
    version: int,
) -> list[float]:
    """1 where an answer is likelier after its own prompt than after another's, else 0 [n].

    An answer that would fit any question ("Thank you.") is not on topic. What most answers begin or end with, such as a
    sign-off, says nothing about the question and is not counted; where nothing else is left, the answer is not on
    topic. `version` is the live policy, which did not learn to please the gate. The other prompt is the next one in the
    list, so two are needed.
    """
    if len(prompts) < 2:
        return []
    spans = own_spans(answers)
    requests = []
    for index, (ids, (start, end)) in enumerate(zip(answers, spans, strict=True)):
        kept = ids[: min(end, start + _TOPIC_TOKENS)] or ids[:1]
        for prompt in (prompts[index], prompts[(index + 1) % len(prompts)]):
            requests.append(ScoreRequest(prompt_ids=prompt, completion_ids=kept, version=version))
    scores = policy.score(requests)
    return [
        float(sum(own[start:]) > sum(other[start:]) + 1e-6) if end > start else 0.0
        for own, other, (start, end) in zip(scores[::2], scores[1::2], spans, strict=True)
    ]


def own_spans(answers: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Where each answer's own text begins and ends: without the opening and the ending that most answers share."""
    openings = _shared(answers)
    endings = _shared([ids[::-1] for ids in answers])
    spans = []
    for ids, opening, ending in zip(answers, openings, endings, strict=True):
        spans.append((min(opening, len(ids)), max(opening, len(ids) - ending)))
    return spans


def _shared(answers: Sequence[tuple[int, ...]]) -> list[int]:
    """Length of the longest beginning that each answer has in common with most of them [n]."""
    most = len(answers) // 2 + 1
    counts = Counter(ids[:length] for ids in answers for length in range(1, len(ids) + 1))
    return [sum(counts[ids[:length]] >= most for length in range(1, len(ids) + 1)) for ids in answers]


def well_formed(text: str, *, min_words: int = 3, max_repeats: int = 3) -> bool:
    """Not empty, and no run of three words stands more than `max_repeats` times."""
    words = text.lower().split()
    if len(words) < min_words:
        return False
    grams = Counter(tuple(words[i : i + 3]) for i in range(len(words) - 2))
    return not grams or max(grams.values()) <= max_repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """KL(live || candidate) in nats per token on general prompts: one mean a prompt [n], and the tokens they hold."""

    per_prompt: tuple[float, ...]
    tokens: int

    @property
    def mean(self) -> float:
        """Mean over prompts, nats per token."""
        return sum(self.per_prompt) / len(self.per_prompt)


def divergence(
    policy: LocalPolicy,
    prompts: Sequence[tuple[int, ...]],
    live: int,
    candidate: int,
    *,
    stop_ids: tuple[int, ...],
    max_tokens: int = 48,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Divergence:
    """The live policy answers; mean of log live - log candidate over its tokens (unbiased: its own samples)."""
    requests = [
        SampleRequest(
            request_id=f"kl-{index}",
            prompt_ids=prompt,
            version=live,
            stop_ids=stop_ids,
            params=SamplingParams(temperature=1.0, max_tokens=max_tokens, seed=seed + index),
        )
        for index, prompt in enumerate(prompts)
    ]
    samples = policy.generate(requests, progress=progress)
    scored = policy.score(
        [
            ScoreRequest(prompt_ids=p, completion_ids=s.ids, version=candidate)
            for p, s in zip(prompts, samples, strict=True)
        ]
    )
    means = [
        sum(a - b for a, b in zip(sample.logprobs, other, strict=True)) / len(other)
        for sample, other in zip(samples, scored, strict=True)
    ]
    return Divergence(per_prompt=tuple(means), tokens=sum(len(sample.ids) for sample in samples))

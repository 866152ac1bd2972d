"""Held-out answers of two policies to the same prompts, graded and paired.

The live policy's answers are the ones that people were served, read from the record; the candidate answers the same
prompt ids at the same sampling settings. Where a team has no graders, feedback itself is the measure: a candidate's
answer wins if, read with the comment in the prompt, it looks more like what was asked for than the served one did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from practicum.evals.graders import Answer, Grader, grade
from practicum.types.local import Completion, LocalPolicy, ScoreRequest
from practicum.types.tokens import FinishReason, SampleRequest, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One held-out prompt: `prompt_ids: [P]` as served, with the served answer beside it.

    `hindsight_ids` is the same prompt with the comment in it, where there was one; `wanted_ids` a corrected answer.
    """

    case_id: str
    cluster: str
    question: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    stop_ids: tuple[int, ...]
    served_ids: tuple[int, ...]
    served_text: str
    served_finish: FinishReason
    hindsight_ids: tuple[int, ...] | None = None
    wanted_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One answer, its verdicts by grader, and whether all that apply were met."""

    case_id: str
    cluster: str
    question: str
    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    verdicts: Mapping[str, float]

    @property
    def follows(self) -> float:
        """1 if every applicable verdict is at least 0.5, else 0."""
        return float(bool(self.verdicts) and all(value >= 0.5 for value in self.verdicts.values()))


def answer_cases(
    policy: LocalPolicy,
    cases: Sequence[Case],
    version: int,
    *,
    decode: Callable[[Sequence[int]], str],
    graders: Mapping[str, Grader],
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> list[Graded]:
    """Sample one answer a case under `version` and grade it. `seed` makes the run repeatable."""
    requests = [
        SampleRequest(
            request_id=case.case_id,
            prompt_ids=case.prompt_ids,
            version=version,
            stop_ids=case.stop_ids,
            params=SamplingParams(
                temperature=case.params.temperature,
                top_p=case.params.top_p,
                top_k=case.params.top_k,
                min_p=case.params.min_p,
                max_tokens=case.params.max_tokens,
                seed=seed + index,
            ),
        )
        for index, case in enumerate(cases)
    ]
    completions = policy.generate(requests, progress=progress)
    return [_graded(case, completion, decode, graders) for case, completion in zip(cases, completions, strict=True)]


def _graded(
    case: Case, completion: Completion, decode: Callable[[Sequence[int]], str], graders: Mapping[str, Grader]
) -> Graded:
    ids = [token for token in completion.ids if token not in case.stop_ids]
    return grade_text(case, decode(ids), completion.ids, completion.finish_reason, graders)


def grade_text(
    case: Case, text: str, ids: tuple[int, ...], finish_reason: FinishReason, graders: Mapping[str, Grader]
) -> Graded:
    """Grade an answer that is already there (the served one)."""
    verdicts = grade(graders, Answer(text=text, finish_reason=finish_reason, question=case.question))
    return Graded(
        case_id=case.case_id,
        cluster=case.cluster,
        question=case.question,
        text=text,
        ids=ids,
        finish_reason=finish_reason,
        verdicts=verdicts,
    )


def hindsight_margins(
    policy: LocalPolicy, cases: Sequence[Case], answers: Sequence[tuple[int, ...]], version: int
) -> list[float]:
    """Mean over tokens of log q(y_t | prompt with comment) - log pi(y_t | prompt), both under `version` [n].

    Positive where the answer looks more like one given by somebody who had read the comment. `version` is the live
    policy for both answers that are compared, so the candidate does not judge itself.
    """
    requests = []
    for case, ids in zip(cases, answers, strict=True):
        if case.hindsight_ids is None:
            raise ValueError(f"case {case.case_id} has no comment")
        for prompt in (case.hindsight_ids, case.prompt_ids):
            requests.append(
                ScoreRequest(
                    prompt_ids=prompt,
                    completion_ids=ids,
                    version=version,
                    temperature=case.params.scoring_temperature,
                )
            )
    scores = policy.score(requests)
    margins = []
    for told, untold in zip(scores[::2], scores[1::2], strict=True):
        margins.append(sum(a - b for a, b in zip(told, untold, strict=True)) / max(1, len(told)))
    return margins


def wanted_likelihood(policy: LocalPolicy, cases: Sequence[Case], version: int) -> list[float]:
    """Mean logprob per token of the held-out corrected answers under `version` [n]."""
    requests = [
        ScoreRequest(prompt_ids=case.prompt_ids, completion_ids=case.wanted_ids, version=version)
        for case in cases
        if case.wanted_ids
    ]
    return [sum(logprobs) / len(logprobs) for logprobs in policy.score(requests)]

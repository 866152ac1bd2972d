"""What a report says, as frozen records: facts of one learning run, arranged. They know no layout and no colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from practicum.types.feedback import FeedbackForm
from practicum.types.manifests import EntryUse
from practicum.types.policies import Decision, GateCheck, PolicyStatus

ReportKind = Literal["learn", "train"]
ReportState = Literal["promoted", "refused", "stopped", "trained", "unfinished"]

# trained: a step learned from its kind; chosen: picked to train, but no finished training is on record; unused: no step
# of a finished training learned from its kind; heldout: never trained on, kept to judge; excluded: left out, with a
# reason.
Fate = Literal["trained", "chosen", "unused", "heldout", "excluded"]

# newly: meets every check now and did not before; worse: fails a check that it met; better: meets a further check and
# fails no other; kept: met everything before and after; still: no check changed, and one is not met; ungraded: no check
# applies.
PairKind = Literal["newly", "worse", "better", "kept", "still", "ungraded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share in [0, 1] of `n` answers, with its 95% Wilson interval; `estimate` is None where n is 0."""

    estimate: float | None
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How many held-out answers met one check (`name` is a grader's, or `all` for all together), before and after."""

    name: str
    before: Share
    after: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One piece of feedback and what became of it.

    `text` is what was read of it: the words, or the value. It is empty where its author has withdrawn it. `at` is when
    it was given (UTC seconds; None where it is not on record). `reason` explains an exclusion. `later` says what its
    author has done since the run looked: a run never changes, feedback does. `served` is the answer that a correction
    is about.
    """

    feedback_id: str
    form: FeedbackForm | None
    source: str
    at: float | None
    text: str
    fate: Fate
    use: EntryUse | None = None
    call_id: str = ""
    reason: str = ""
    later: Literal["", "edited", "retracted"] = ""
    served: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The served answer and the candidate's to one held-out prompt, with the verdicts of each check in [0, 1]."""

    call_id: str
    question: str
    asked: str
    before: str
    after: str
    verdicts_before: Mapping[str, float]
    verdicts_after: Mapping[str, float]
    kind: PairKind
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of the run: when its record was made, seconds since the record before, and what it timed itself."""

    name: str
    at: float
    elapsed_s: float
    worked_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What the run looked at: feedback given or changed after `since` and until `until` (UTC seconds), and its calls.

    `unaccounted` counts feedback in it that no record of the run names.
    """

    since: float | None
    until: float | None
    calls: int | None
    feedback: int | None
    unaccounted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Figures of the candidate beside the live version's: accuracies in [0, 1], KL in nats per token, median words.

    `reward_*` are mean rewards on held-out tasks, where tasks were compared.
    """

    heldout_cases: int | None
    regression_before: float | None
    regression_after: float | None
    kl_general: float | None
    words_before: float | None
    words_after: float | None
    reward_before: float | None = None
    reward_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What training took. `rollouts`: how many of a training run's were learned from, and how many not, by reason."""

    steps: int | None
    skipped_steps: int | None
    sampled_tokens: int | None
    trained_tokens: int | None
    rollouts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run, of learning from feedback or of training on tasks.

    What the run did not get to is None or empty; nothing is guessed.
    `verdict` is one sentence for people. `reason` is the decision's, or why training stopped. `version` is the
    candidate, `previous` the version that it is compared with. `status` is the candidate's now, `live` what is served
    now, `rolled_back` the decision that took it back.
    `shown` are the indices of the pairs to show first: newly followed ones, then everything that got worse.
    """

    run_id: str
    state: ReportState
    verdict: str
    reason: str
    created_at: float
    updated_at: float
    last_step: str
    model: str
    previous: int | None
    version: int | None
    status: PolicyStatus | None
    live: int | None
    decision: Decision | None
    rolled_back: Decision | None
    window: Window
    items: tuple[Item, ...]
    rates: tuple[Rate, ...]
    target: GateCheck | None
    checks: tuple[GateCheck, ...]
    measures: Measures
    work: Work
    stages: tuple[Stage, ...]
    manifest_digest: str
    adapter_digest: str
    pairs: tuple[Pair, ...]
    shown: tuple[int, ...]
    log: tuple[Mapping[str, Any], ...]
    kind: ReportKind = "learn"

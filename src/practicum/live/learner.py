"""From a frozen manifest to phases of training: which entries teach in which way, in which order."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from practicum.algorithms.cloning import Cloning, Correction, added_text, emphasis
from practicum.algorithms.fresh import FreshAnswers
from practicum.algorithms.hindsight import Hindsight, Lesson, nothing_said
from practicum.algorithms.order import epoch_order
from practicum.algorithms.polarity import Polarity, Verdict
from practicum.algorithms.replay import Anchors, WithReplay
from practicum.config import Config
from practicum.errors import GuardTripped
from practicum.live.prompts import PromptBook
from practicum.live.replay import replay_conversations
from practicum.live.workbench import Workbench
from practicum.store import Store
from practicum.trainer.guards import Guards
from practicum.trainer.loop import Outcome, Phase, Run
from practicum.types.calls import ModelCall
from practicum.types.local import STUDENT, Completion
from practicum.types.manifests import Entry, Manifest
from practicum.types.policies import PolicyVersion
from practicum.types.training import Progress


class Learner:
    """Trains a candidate from the live version on a manifest's training entries.

    Comments come first, while the policy is the one that people commented on: it is their teacher. Corrected answers
    come last and mostly train what the person changed, so they add to what the comments taught instead of undoing it.
    """

    def __init__(
        self, bench: Workbench, prompts: PromptBook, config: Config, store: Store, live: PolicyVersion
    ) -> None:
        self._bench = bench
        self._prompts = prompts
        self._settings = config.learn
        self._store = store
        self._live = live

    def train(self, manifest: Manifest, folder: Path, progress: Progress) -> Outcome:
        """Train or resume in `folder`. Raises GuardTripped if a guard stops the run or nothing is there to learn."""
        self._bench.start_from(self._live)
        folder.mkdir(parents=True, exist_ok=True)
        phases = self._with_replay(self.phases(manifest, folder), folder)
        if not phases:
            raise GuardTripped(
                "No comment and no corrected answer is left to learn from in this window.",
                hint="See the report for why each item was left out.",
            )
        guards = Guards(max_kl=self._settings.max_kl)
        run = Run(self._bench.trainer, phases, folder, guards=guards, checkpoint_every=self._settings.checkpoint_every)
        return run.train(progress=progress)

    def _with_replay(self, phases: Sequence[Phase], folder: Path) -> list[Phase]:
        settings = self._settings
        if not (settings.replay_rows and settings.replay_weight):
            return list(phases)
        prompts = [tuple(self._prompts.render(messages)) for messages in replay_conversations(settings.replay_prompts)]
        anchors = Anchors(
            prompts,
            self._fresh(folder / "answers-replay.json", settings.seed + 1),
            max_tokens=settings.replay_max_tokens,
        )
        return [
            replace(
                phase,
                source=WithReplay(
                    phase.source,
                    anchors,
                    rows=settings.replay_rows,
                    weight=settings.replay_weight,
                    seed=settings.seed + place,
                ),
            )
            for place, phase in enumerate(phases)
        ]

    def phases(self, manifest: Manifest, folder: Path) -> list[Phase]:
        """Phases in order; one without entries, or without epochs, is left out."""
        settings = self._settings
        lessons = manifest.select("hindsight", "train")
        verdicts = [self._verdict(entry) for entry in manifest.select("polarity", "train")]
        corrections = [self._correction(entry) for entry in manifest.select("clone", "train")]
        phases = []
        for turn in range(settings.hindsight_served_rounds + settings.hindsight_rounds if lessons else 0):
            picked = epoch_order(len(lessons), settings.hindsight_prompts, turn, settings.seed)
            phases.append(self._round(turn, [self._lesson(lessons[index], lessons) for index in picked], folder))
        if len(verdicts) >= settings.polarity_min and settings.polarity_epochs:
            phases.append(
                Phase(
                    name="thumbs and scores",
                    source=Polarity(verdicts, batch=settings.polarity_batch, seed=settings.seed),
                    steps=_steps(settings.polarity_epochs, len(verdicts), settings.polarity_batch),
                    learning_rate=settings.polarity_learning_rate,
                    fresh_optimizer=True,
                )
            )
        if corrections and settings.clone_epochs:
            cloning = Cloning(
                corrections,
                fresh=self._fresh(folder / "answers-corrected.json", settings.seed),
                batch=settings.clone_batch,
                seed=settings.seed,
                tries=settings.clone_tries,
                max_tokens=settings.clone_max_tokens,
            )
            phases.append(
                Phase(
                    name="corrected answers",
                    source=cloning,
                    steps=_steps(settings.clone_epochs, cloning.rows, settings.clone_batch),
                    learning_rate=settings.clone_learning_rate,
                    fresh_optimizer=True,
                    own_teacher=True,
                )
            )
        return phases

    def _round(self, turn: int, lessons: Sequence[Lesson], folder: Path) -> Phase:
        settings = self._settings
        served = turn < settings.hindsight_served_rounds
        seed = settings.seed * 1_009 + turn + 1
        return Phase(
            name=f"comments, round {turn + 1} ({'served' if served else 'fresh'} answers)",
            source=Hindsight(
                lessons,
                fresh=None if served else self._fresh(folder / f"answers-{turn + 1}.json", seed),
                batch=settings.hindsight_batch,
                seed=seed,
                skip_tokens=settings.skip_tokens,
                max_tokens=settings.hindsight_max_tokens,
            ),
            steps=_steps(1, len(lessons), settings.hindsight_batch),
            learning_rate=settings.hindsight_learning_rate * settings.hindsight_rate_decay**turn,
            fresh_optimizer=turn == 0,
        )

    def _fresh(self, pool_file: Path, seed: int) -> FreshAnswers:
        return FreshAnswers(
            policy=self._bench.policy,
            student=STUDENT,
            refresh=self._bench.refresh,
            stop_ids=self._prompts.stop_ids,
            pool_file=pool_file,
            seed=seed,
        )

    def _correction(self, entry: Entry) -> Correction:
        call = self._call(entry)
        answer_ids = self._prompts.answer_ids(entry.text, behind=call.prompt_ids)
        added = added_text(entry.text, self._prompts.text(call.completion_ids))
        return Correction(
            row_id=entry.call_id,
            prompt_ids=call.prompt_ids,
            params=self._prompts.params(call),
            answer_ids=answer_ids,
            emphasis=emphasis(answer_ids, call.completion_ids, self._settings.clone_kept_weight),
            added_ids=self._prompts.answer_ids(added) if added is not None else None,
            weight=entry.weight,
        )

    def _verdict(self, entry: Entry) -> Verdict:
        call = self._call(entry)
        return Verdict(
            row_id=entry.call_id,
            prompt_ids=call.prompt_ids,
            answer_ids=call.completion_ids,
            logprobs=call.logprobs,
            temperature=self._prompts.params(call).scoring_temperature,
            polarity=entry.polarity,
            weight=entry.weight,
            imposed=call.imposed,
        )

    def _lesson(self, entry: Entry, window: Sequence[Entry]) -> Lesson:
        """The entry's comments, and beside them some that people left on other answers in the same window."""
        call = self._call(entry)
        others = [other.text for other in window if other is not entry]
        chance = random.Random(f"{self._settings.seed}:{entry.call_id}")
        beside = chance.sample(others, min(self._settings.hindsight_beside, len(others)))
        comments = [" ".join(text.split()) for text in (entry.text, *beside)]
        return Lesson(
            row_id=entry.call_id,
            prompt_ids=call.prompt_ids,
            teacher_prompt_ids=self._prompts.hindsight_ids(call, comments),
            contrast_prompt_ids=self._prompts.hindsight_ids(call, nothing_said(len(comments))),
            params=self._prompts.params(call),
            served=_as_served(call),
            weight=entry.weight,
        )

    def _call(self, entry: Entry) -> ModelCall:
        call = self._store.get_call(entry.call_id)
        if call is None:
            raise RuntimeError(f"the manifest names call {entry.call_id}, which the store does not have")
        return call


def _as_served(call: ModelCall) -> Completion:
    """The recorded answer; curation lets no call through whose tokens lack a logprob."""
    return Completion(
        request_id=call.call_id,
        ids=call.completion_ids,
        logprobs=tuple(value for value in call.logprobs if value is not None),
        version=call.policy_version,
        finish_reason=call.finish_reason or "stop",
    )


def _steps(epochs: float, rows: int, batch: int) -> int:
    return max(1, math.ceil(epochs * math.ceil(rows / batch)))

"""Gather the evidence on a candidate: held-out answers, the regression suite, the guards."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from practicum.config import Config
from practicum.evals.graders import Grader
from practicum.evals.guards import ChoiceResult, Divergence, divergence, load_choices, on_topic, score_choices
from practicum.evals.heldout import (
    Case,
    Graded,
    answer_cases,
    grade_text,
    hindsight_margins,
    wanted_likelihood,
)
from practicum.evals.stats import proportion
from practicum.live.prompts import PromptBook
from practicum.live.workbench import Workbench
from practicum.release.gate import Answers, Evidence, checks
from practicum.store import Store
from practicum.types.local import LocalPolicy
from practicum.types.manifests import Manifest
from practicum.types.messages import Message
from practicum.types.policies import PolicyVersion
from practicum.types.training import Progress


class Examiner:
    """Compares a candidate with the live policy on what neither was trained on."""

    def __init__(
        self, bench: Workbench, prompts: PromptBook, config: Config, graders: Mapping[str, Grader], store: Store
    ) -> None:
        self._bench = bench
        self._prompts = prompts
        self._config = config
        self._graders = graders
        self._store = store

    def examine(
        self, manifest: Manifest, live: PolicyVersion, candidate: PolicyVersion, progress: Progress
    ) -> dict[str, Any]:
        """Everything the decision and the report need, as JSON."""
        began = time.monotonic()
        self._bench.serve(live)
        self._bench.serve(candidate)
        cases = self._cases(manifest)
        old = [grade_text(c, c.served_text, c.served_ids, c.served_finish, self._graders) for c in cases]
        new = answer_cases(
            self._bench.policy,
            cases,
            candidate.version,
            decode=self._prompts.text,
            graders=self._graders,
            seed=self._config.evals.seed,
            progress=lambda done: progress("held-out answers", done, len(cases), {}),
        )
        name, target_new, target_old, clusters = self._target(cases, new, old, live, candidate)
        evidence = self._evidence(name, target_new, target_old, clusters, new, old, cases, live, candidate, progress)
        lines = checks(evidence, self._config.gate)
        figures = self._figures(evidence, new, old, manifest) | {"gate_s": time.monotonic() - began}
        asked = {entry.call_id: entry.text for entry in manifest.entries if entry.split == "heldout" and entry.text}
        return {
            "checks": [asdict(line) for line in lines],
            "figures": figures,
            "examples": [_example(o, n, asked.get(c.case_id, "")) for c, o, n in zip(cases, old, new, strict=True)],
        }

    def _cases(self, manifest: Manifest) -> list[Case]:
        comments: dict[str, list[str]] = defaultdict(list)
        wanted: dict[str, str] = {}
        for entry in manifest.entries:
            if entry.split == "heldout" and entry.use == "hindsight":
                comments[entry.call_id].append(entry.text)
            if entry.split == "heldout" and entry.use == "clone":
                wanted[entry.call_id] = entry.text
        cases = []
        for call_id in manifest.heldout_calls[: self._config.evals.max_cases]:
            call = self._store.get_call(call_id)
            if call is None or call.finish_reason is None:
                continue
            cases.append(
                Case(
                    case_id=call_id,
                    cluster=call.session_id,
                    question=self._prompts.question(call),
                    prompt_ids=call.prompt_ids,
                    params=self._prompts.params(call),
                    stop_ids=self._prompts.stop_ids,
                    served_ids=call.completion_ids,
                    served_text=self._prompts.text(call.completion_ids),
                    served_finish=call.finish_reason,
                    hindsight_ids=self._prompts.hindsight_ids(call, comments[call_id]) if comments[call_id] else None,
                    wanted_ids=self._prompts.answer_ids(wanted[call_id], behind=call.prompt_ids)
                    if call_id in wanted
                    else None,
                )
            )
        return cases

    def _target(
        self,
        cases: Sequence[Case],
        new: Sequence[Graded],
        old: Sequence[Graded],
        live: PolicyVersion,
        candidate: PolicyVersion,
    ) -> tuple[str, list[float], list[float], list[str]]:
        """Graders where the team has some; else the held-out feedback itself, item by item."""
        if self._graders:
            name = "all of " + ", ".join(self._graders)
            return name, [g.follows for g in new], [g.follows for g in old], [c.cluster for c in cases]
        policy = self._bench.policy
        told = [index for index, case in enumerate(cases) if case.hindsight_ids is not None]
        shown = [case for case in cases if case.wanted_ids is not None]
        chosen = [cases[index] for index in told]
        margins_new = hindsight_margins(policy, chosen, [new[i].ids for i in told], live.version)
        margins_old = hindsight_margins(policy, chosen, [old[i].ids for i in told], live.version)
        wins = [float(a > b) - float(a < b) for a, b in zip(margins_new, margins_old, strict=True)]
        wanted_new = wanted_likelihood(policy, shown, candidate.version)
        wanted_old = wanted_likelihood(policy, shown, live.version)
        wins += [float(a > b) - float(a < b) for a, b in zip(wanted_new, wanted_old, strict=True)]
        clusters = [case.cluster for case in chosen] + [case.cluster for case in shown]
        return "held-out feedback, wins minus losses", wins, [0.0] * len(wins), clusters

    def _evidence(
        self,
        name: str,
        target_new: Sequence[float],
        target_old: Sequence[float],
        clusters: Sequence[str],
        new: Sequence[Graded],
        old: Sequence[Graded],
        cases: Sequence[Case],
        live: PolicyVersion,
        candidate: PolicyVersion,
        progress: Progress,
    ) -> Evidence:
        policy = self._bench.policy
        regression_old, regression_new, distance = unasked(
            policy, self._prompts, self._config, live, candidate, progress
        )
        served = [case.prompt_ids for case in cases]
        return Evidence(
            target_name=name,
            target_new=tuple(target_new),
            target_old=tuple(target_old),
            target_clusters=tuple(clusters),
            regression_old=regression_old,
            regression_new=regression_new,
            divergence=distance,
            answers=Answers(
                clusters=tuple(case.cluster for case in cases),
                new=tuple(new),
                old=tuple(old),
                on_topic_new=tuple(on_topic(policy, served, [answer.ids for answer in new], live.version)),
                on_topic_old=tuple(on_topic(policy, served, [answer.ids for answer in old], live.version)),
            ),
        )

    def _figures(
        self, evidence: Evidence, new: Sequence[Graded], old: Sequence[Graded], manifest: Manifest
    ) -> dict[str, Any]:
        return {
            "rates": {name: {"before": _rate(old, name), "after": _rate(new, name)} for name in [*self._graders, "all"]}
            if self._graders
            else {},
            "words_before": _median([len(answer.text.split()) for answer in old]),
            "words_after": _median([len(answer.text.split()) for answer in new]),
            "regression_before": evidence.regression_old.accuracy,
            "regression_after": evidence.regression_new.accuracy,
            "kl_general": evidence.divergence.mean,
            "heldout_cases": len(new),
            "manifest": manifest.digest,
        }


def unasked(
    policy: LocalPolicy,
    prompts: PromptBook,
    config: Config,
    live: PolicyVersion,
    candidate: PolicyVersion,
    progress: Progress,
) -> tuple[ChoiceResult, ChoiceResult, Divergence]:
    """What training was not to change: the regression suite under both versions (the live one first), and how far the
    candidate has gone from the live one on general prompts. Both versions are servable.
    """
    items = load_choices(config.evals.regression_suite)
    total = sum(len(item.options) for item in items)
    old, new = (
        score_choices(
            policy,
            items,
            version.version,
            render=prompts.render,
            encode=prompts.renderer.tokenizer.encode,
            progress=lambda done, label=label: progress(label, done, total, {}),  # type: ignore[misc]
        )
        for version, label in ((live, "regression suite, live"), (candidate, "regression suite, candidate"))
    )
    general = [
        tuple(prompts.render([Message(role="user", content=item.question)]))
        for item in items[: config.evals.divergence_prompts]
    ]
    distance = divergence(
        policy,
        general,
        live.version,
        candidate.version,
        stop_ids=prompts.stop_ids,
        seed=config.evals.seed,
        progress=lambda done: progress("distance to the live policy", done, len(general), {}),
    )
    return old, new, distance


def _rate(answers: Sequence[Graded], name: str) -> dict[str, Any]:
    """How many answers a grader (or all of them) passed, with a Wilson interval."""
    if name == "all":
        values = [answer.follows for answer in answers]
    else:
        values = [answer.verdicts[name] for answer in answers if name in answer.verdicts]
    return asdict(proportion(sum(value >= 0.5 for value in values), len(values)))


def _example(old: Graded, new: Graded, asked: str) -> dict[str, Any]:
    return {
        "call_id": old.case_id,
        "question": old.question,
        "asked": asked,
        "before": old.text,
        "after": new.text,
        "verdicts_before": dict(old.verdicts),
        "verdicts_after": dict(new.verdicts),
    }


def _median(values: Sequence[int]) -> float:
    ordered = sorted(values)
    return float(ordered[len(ordered) // 2]) if ordered else 0.0

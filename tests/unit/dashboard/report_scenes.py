"""Learning runs in a real store, in every state a report can meet. Shapes are those that the steps of a run record."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from practicum.policies import Registry
from practicum.store import Store, open_store
from practicum.types.calls import ModelCall
from practicum.types.feedback import FeedbackEvent
from practicum.types.manifests import Entry, Exclusion, Manifest
from practicum.types.policies import Decision, GateCheck

NOW = 1_800_000_000.0
UNTIL = NOW + 3_600
LOREM = "Thank you for writing to us about your order. We are sorry that the parcel has not arrived yet. "


@dataclass
class Clock:
    """UTC seconds that a test sets."""

    at: float = UNTIL

    def __call__(self) -> float:
        return self.at


@dataclass
class Scene:
    """A store with feedback and a registry; `run` adds a learning run as far as asked."""

    folder: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.store: Store = open_store(self.folder / "practicum.db", clock=self.clock)
        self.registry = Registry(self.store, self.folder / "policies")
        self.entries: list[Entry] = []
        self.excluded: list[Exclusion] = []

    def say(
        self,
        text: Any,
        *,
        form: str = "comment",
        source: str = "helpdesk/anna",
        split: str = "train",
        excluded: str = "",
        use: str | None = None,
        served: str = LOREM,
    ) -> str:
        """Give feedback and put it in the manifest; returns its id."""
        number = len(self.entries) + len(self.excluded)
        feedback_id = f"fb_{number:04d}"
        self.event(feedback_id, "give", text, form, source, NOW + 60 * number)
        if excluded:
            self.excluded.append(Exclusion(item_id=feedback_id, source=source, reason=excluded))
            return feedback_id
        self.serve(f"call_{number:04d}", served)
        teaches = use or {"comment": "hindsight", "correction": "clone"}.get(form, "polarity")
        self.entries.append(
            Entry(
                call_id=f"call_{number:04d}",
                session_id=f"ses_{number:04d}",
                feedback_ids=(feedback_id,),
                sources=(source,),
                use=teaches,  # type: ignore[arg-type]
                split=split,  # type: ignore[arg-type]
                text=str(text) if teaches != "polarity" else "",
                polarity=1.0 if teaches == "polarity" else 0.0,
            )
        )
        return feedback_id

    def serve(self, call_id: str, text: str) -> None:
        """Put a served answer on record."""
        self.store.put_call(
            ModelCall(
                call_id=call_id,
                session_id=f"ses_of_{call_id}",
                principal="helpdesk",
                kind="agent",
                status="complete",
                created_at=NOW,
                policy_version=0,
                model="practicum",
                request={"messages": [{"role": "user", "content": "Where is my parcel?"}]},
                text=text + "<|im_end|>",
            )
        ).result()

    def event(self, feedback_id: str, action: str, value: Any, form: str, source: str, at: float) -> None:
        self.store.append_feedback_event(
            FeedbackEvent(
                event_id=f"{feedback_id}-{action}",
                feedback_id=feedback_id,
                action=action,  # type: ignore[arg-type]
                target_kind="call",
                target_id=f"call_of_{feedback_id}",
                form=form,  # type: ignore[arg-type]
                source=source,
                value=value,
                actor=source,
                at=at,
            )
        ).result()

    def run(
        self,
        upto: str,
        *,
        run_id: str = "run_01",
        checks: Sequence[GateCheck] = (),
        figures: dict[str, Any] | None = None,
        examples: Sequence[dict[str, Any]] = (),
        log: Sequence[dict[str, Any]] | None = None,
        stopped: str = "",
        feedback: int | None = None,
        decision_extra: dict[str, Any] | None = None,
    ) -> str:
        """Record the steps of one run, up to and including `upto`; `stopped` ends it after that."""
        manifest = Manifest(
            entries=tuple(self.entries),
            excluded=tuple(self.excluded),
            train_calls=tuple(e.call_id for e in self.entries if e.split == "train"),
            heldout_calls=tuple(e.call_id for e in self.entries if e.split == "heldout"),
            cutoff=NOW,
            digest="5f" * 32,
        )
        counted = len(self.entries) + len(self.excluded) if feedback is None else feedback
        live = self.registry.live().version
        self.clock.at = UNTIL + 2
        self.store.create_run(run_id, {"model": {"id": "smollm2-135m-instruct"}}, "running").result()
        log = training_log() if log is None else log
        done = self._finish(run_id, upto, "collect", {"since": 0.0, "until": UNTIL, "live": live}, 0)
        done = done or self._finish(
            run_id, upto, "curate", {"manifest": asdict(manifest), "calls": 240, "feedback": counted}, 1
        )
        done = done or self._finish(run_id, upto, "train", trained(log), 312)
        if not done:
            version = self._register(run_id, live)
            done = self._finish(run_id, upto, "register", {"version": version, "digest": "ab" * 32}, 1)
        gate = {"checks": [asdict(c) for c in checks], "figures": figures or {}, "examples": list(examples)}
        done = done or self._finish(run_id, upto, "gate", gate, 95)
        if not done:
            decision = self._decide(run_id, live, checks, gate["figures"] | (decision_extra or {}))
            self._finish(run_id, upto, "decide", {"decision": asdict(decision)}, 1)
            self.store.set_run_state(run_id, "finished").result()
        if stopped:
            self._finish(run_id, "stopped", "stopped", {"reason": stopped}, 30)
            self.store.set_run_state(run_id, "stopped").result()
        return run_id

    def _finish(self, run_id: str, upto: str, step: str, output: dict[str, Any], took_s: float) -> bool:
        self.clock.at += took_s
        self.store.finish_step(run_id, step, output).result()
        return step == upto

    def _register(self, run_id: str, live: int) -> int:
        adapter = self.folder / f"adapter-{run_id}"
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text("{}")
        (adapter / "adapter_model.safetensors").write_bytes(b"weights of " + run_id.encode())
        return self.registry.register_candidate(adapter, parent=live, run_id=run_id).version

    def _decide(self, run_id: str, live: int, checks: Sequence[GateCheck], figures: dict[str, Any]) -> Decision:
        version = max(policy.version for policy in self.registry.list())
        failed = [check.name for check in checks if not check.passed] or figures.get("refused_because")
        decision = Decision(
            decision_id=f"dec_{run_id}",
            version=version,
            previous=live,
            verdict="refuse" if failed else "promote",
            reason=f"not held: {failed}" if failed else "every guard held",
            actor="gate",
            created_at=self.clock.at,
            run_id=run_id,
            checks=tuple(checks),
            figures=figures,
        )
        self.registry.apply_decision(decision)
        return decision

    def roll_back(self, to: int, previous: int, reason: str) -> None:
        self.registry.apply_decision(
            Decision(
                decision_id="dec_back",
                version=to,
                previous=previous,
                verdict="rollback",
                reason=reason,
                actor="helpdesk",
                created_at=time.time(),
            )
        )


def trained(log: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "adapter": "runs/run_01/adapter",
        "digest": "ab" * 32,
        "steps": len(log),
        "skipped_steps": sum(bool(figures.get("skipped")) for figures in log),
        "trained_tokens": 81_234,
        "sampled_tokens": 20_480,
        "wall_s": 287.5,
        "log": list(log),
    }


def training_log(clone: int = 12, comments: int = 30) -> list[dict[str, Any]]:
    """Two phases; step 7 of the second had no signal."""
    log: list[dict[str, Any]] = []
    for step in range(clone):
        loss = 1.9 * 0.82**step + 0.12
        log.append(
            {"phase": "corrected answers", "step": step, "cross_entropy/loss": loss, "cross_entropy/kl": 0.02 * step}
        )
    for step in range(comments):
        if step == 7:
            log.append({"phase": "comments", "step": step, "skipped": True})
            continue
        wave = 0.03 * ((step * 7919) % 11 - 5) / 5
        log.append(
            {
                "phase": "comments",
                "step": step,
                "distill/loss": 0.9 * 0.9**step + 0.1 + wave,
                "distill/kl": 0.24 + 0.012 * step + wave,
                "fresh_length": 110 * 0.93**step + 30 + 60 * wave,
            }
        )
    return log


def line(name: str, estimate: float, half: float, bound: float, passed: bool, *, upper: bool = False) -> GateCheck:
    rule = f"must be at most {bound:.3f}" if upper else f"the interval must lie above {bound:+.3f}"
    return GateCheck(
        name=name,
        rule=rule,
        estimate=estimate,
        low=estimate - half,
        high=estimate + half,
        bound=bound,
        passed=passed,
        n=40,
        detail="accuracy 0.612 -> 0.608" if name.startswith("regression") else "",
    )


def gate_lines(regression: float = -0.004) -> tuple[GateCheck, ...]:
    held = regression - 0.012 > -0.03
    return (
        line("target: all of brief, sign_off", 0.775, 0.125, 0.1, True),
        line("regression suite: probability of the right option", regression, 0.012, -0.03, held),
        line("stays on the question", -0.01, 0.035, -0.05, True),
        line("well formed: not empty, no loops", 0.0, 0.0, -0.03, True),
        line("distance to the live policy on general prompts (nats per token)", 0.041, 0.011, 0.15, True, upper=True),
    )


def wilson(hits: int, n: int) -> dict[str, float]:
    """The interval that the gate records: share of `hits` in `n` with Wilson's 95% bounds."""
    z, share = 1.959964, hits / n
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    return {"estimate": share, "low": max(0.0, low), "high": min(1.0, high), "n": n}


def rates(n: int = 40) -> dict[str, Any]:
    hits = {"brief": (6, 37), "sign_off": (0, 34), "all": (0, 31)}
    return {name: {"before": wilson(before, n), "after": wilson(after, n)} for name, (before, after) in hits.items()}


def gate_figures() -> dict[str, Any]:
    return {
        "rates": rates(),
        "words_before": 96.0,
        "words_after": 27.0,
        "regression_before": 0.612,
        "regression_after": 0.608,
        "kl_general": 0.0413,
        "heldout_cases": 40,
        "manifest": "5f" * 32,
        "gate_s": 93.1,
    }


def example(
    call_id: str, met_before: tuple[float, float] | None, met_after: tuple[float, float] | None, **texts: str
) -> dict[str, Any]:
    """Verdicts are (brief, sign_off); None is a run without graders."""
    names = ("brief", "sign_off")
    body = {
        "question": "Where is my parcel? It was due on Tuesday.",
        "asked": "Too long. I stopped reading after the second line.",
        "before": LOREM * 4,
        "after": "Your parcel is with the carrier and arrives tomorrow before noon.\n\n— Your Maple & Finch team",
    }
    return {
        "call_id": call_id,
        **body,
        **texts,
        "verdicts_before": dict(zip(names, met_before, strict=True)) if met_before else {},
        "verdicts_after": dict(zip(names, met_after, strict=True)) if met_after else {},
    }


def examples() -> list[dict[str, Any]]:
    gained = [example(f"call_g{i}", (0, 0), (1, 1)) for i in range(9)]
    lost = [example(f"call_l{i}", (1, 0), (0, 1), after=LOREM * 2) for i in range(2)]
    return [*lost, example("call_s", (0, 0), (0, 0)), example("call_k", (1, 1), (1, 1)), *gained]


def ordinary(folder: Path) -> Scene:
    """Comments, corrections and a thumb; some held out, some left out."""
    scene = Scene(folder)
    scene.say("Too long. I stopped reading after the second line.")
    scene.say("Too long. I stopped reading after the second line.", source="helpdesk/ben")
    scene.say("Please sign off with the team's name.", form="correction", source="helpdesk/cleo")
    scene.say("up", form="thumb", source="helpdesk/dora")
    scene.say("Shorter, please.", split="heldout", source="helpdesk/emil")
    scene.say("ok", source="helpdesk/fay", excluded="1 words; comments of 2 to 200 are read")
    return scene

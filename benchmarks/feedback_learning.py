"""Three ways to follow the help desk's house style, on the same day of calls and feedback, side by side.

    python benchmarks/feedback_learning.py [--home .practicum/demo]

`feedback learner` is what `practicum learn` trains. `fine-tuning` is supervised fine-tuning on the corrected answers as
they were written, at the same learning rate and for the same wall time. `rule in the prompt` tells the model the house
style in the system prompt and trains nothing. Each answers the same held-out messages; the regression suite and the KL
to the model as it was say what it cost. The home is the one that `practicum demo` leaves behind.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "4_agentic_citizen" / "helpdesk"
sys.path[:0] = [str(ROOT), str(RECIPE)]

from agent import SYSTEM_PROMPT
from benchmarks.serving import write_results
from demo import FULL, split
from rules import GRADERS, MAX_WORDS, SIGN_OFF

from practicum.algorithms.order import epoch_order
from practicum.cli import wiring
from practicum.config import Config
from practicum.curation import curate
from practicum.evals.graders import Answer
from practicum.evals.guards import divergence, load_choices, score_choices
from practicum.evals.stats import proportion
from practicum.live.learner import Learner
from practicum.live.prompts import PromptBook
from practicum.live.workbench import Workbench
from practicum.policies import Registry
from practicum.store import Store
from practicum.types.local import STUDENT
from practicum.types.manifests import Manifest
from practicum.types.messages import Message
from practicum.types.tokens import SampleRequest, SamplingParams
from practicum.types.training import Datum

RULE = f" Answer in at most {MAX_WORDS} words. End every answer with a line of its own that says: {SIGN_OFF}"


@dataclass
class Field:
    """What every way works on."""

    config: Config
    store: Store
    registry: Registry
    bench: Workbench
    prompts: PromptBook
    manifest: Manifest
    messages: int

    def answers(self, version: int, system: str) -> list[Answer]:
        """Held-out messages answered under a version and a system prompt."""
        _, held_out = split(FULL)
        chosen = held_out[: self.messages]
        requests = [
            SampleRequest(
                request_id=message["id"],
                prompt_ids=tuple(
                    self.prompts.render(
                        [Message(role="system", content=system), Message(role="user", content=message["text"])]
                    )
                ),
                version=version,
                stop_ids=self.prompts.stop_ids,
                params=SamplingParams(temperature=0.7, max_tokens=96, seed=500 + place),
            )
            for place, message in enumerate(chosen)
        ]
        return [
            Answer(text=self.prompts.text(done.ids), finish_reason=done.finish_reason)
            for done in self.bench.policy.generate(requests)
        ]

    def measure(self, version: int, system: str, learning_s: float) -> dict[str, Any]:
        """One row of the table."""
        answers = self.answers(version, system)
        follows = {name: [grader(answer) for answer in answers] for name, grader in GRADERS.items()}
        both = [all(marks) for marks in zip(*follows.values(), strict=True)]
        share = proportion(sum(both), len(both))
        items = load_choices(None)
        choices = score_choices(
            self.bench.policy,
            items,
            version,
            render=self.prompts.render,
            encode=self.prompts.renderer.tokenizer.encode,
        )
        general = [tuple(self.prompts.render([Message(role="user", content=item.question)])) for item in items[:16]]
        moved = divergence(self.bench.policy, general, 0, version, stop_ids=self.prompts.stop_ids)
        return {
            "follow_rate": share.estimate,
            "follow_rate_ci": [share.low, share.high],
            "by_rule": {name: sum(marks) / len(marks) for name, marks in follows.items()},
            "mean_words": sum(len(answer.text.split()) for answer in answers) / len(answers),
            "regression_accuracy": choices.accuracy,
            "kl_general_nats_per_token": moved.mean,
            "learning_s": learning_s,
        }


def learn(field: Field, folder: Path) -> float:
    """The learner of `practicum learn`; wall seconds."""
    began = time.monotonic()
    learner = Learner(field.bench, field.prompts, field.config, field.store, field.registry.base())
    learner.train(field.manifest, folder, lambda stage, done, total, figures: print(f"  {stage} {done}/{total}"))
    return time.monotonic() - began


def fine_tune(field: Field, seconds: float) -> float:
    """Cross-entropy on the corrected answers, every token alike, until the time is used; wall seconds."""
    began = time.monotonic()
    field.bench.start_from(field.registry.base())
    rows = _corrected(field)
    step, batch = 0, field.config.learn.clone_batch
    while time.monotonic() - began < seconds:
        picked = [rows[index] for index in epoch_order(len(rows), batch, step, 0)]
        total = sum(len(row.completion_ids) for row in picked)
        weighed = [
            Datum(
                row_id=row.row_id,
                prompt_ids=row.prompt_ids,
                completion_ids=row.completion_ids,
                weights=(1 / total,) * len(row.completion_ids),
            )
            for row in picked
        ]
        field.bench.trainer.forward_backward(weighed, "cross_entropy", key=f"sft:{step}")
        field.bench.trainer.optim_step(learning_rate=field.config.learn.clone_learning_rate, key=f"sft:{step}:step")
        step += 1
    print(f"  {step} steps, {step * batch / len(rows):.1f} epochs")
    return time.monotonic() - began


def _corrected(field: Field) -> list[Datum]:
    rows = []
    for entry in field.manifest.select("clone", "train"):
        call = field.store.get_call(entry.call_id)
        assert call is not None
        ids = field.prompts.answer_ids(entry.text)
        rows.append(
            Datum(row_id=entry.call_id, prompt_ids=call.prompt_ids, completion_ids=ids, weights=(1.0,) * len(ids))
        )
    return rows


def run(field: Field) -> dict[str, Any]:
    """All rows of the table."""
    found = {"start": field.measure(0, SYSTEM_PROMPT, 0.0)}
    found["rule in the prompt"] = field.measure(0, SYSTEM_PROMPT + RULE, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        seconds = learn(field, Path(folder))
    field.bench.refresh()
    found["feedback learner"] = field.measure(STUDENT, SYSTEM_PROMPT, seconds)
    spent = fine_tune(field, seconds)
    field.bench.refresh()
    found["fine-tuning, same time"] = field.measure(STUDENT, SYSTEM_PROMPT, spent)
    return found


def show(found: dict[str, Any], columns: Sequence[tuple[str, Callable[[dict[str, Any]], str]]]) -> None:
    print("| way | " + " | ".join(name for name, _ in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for way, row in found.items():
        print(f"| {way} | " + " | ".join(shape(row) for _, shape in columns) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=ROOT / ".practicum" / "demo")
    parser.add_argument("--messages", type=int, default=48)
    options = parser.parse_args()
    if not (options.home / "practicum.db").is_file():
        sys.exit(
            f"{options.home} holds no day of calls and feedback. Run `practicum demo` first, or name another --home."
        )
    config = wiring.settings(options.home / "practicum.toml", {"home": str(options.home)})
    with wiring.opened(config) as (store, registry):
        field = Field(
            config=config,
            store=store,
            registry=registry,
            prompts=PromptBook(wiring.renderer(config), config.gateway.default_max_tokens),
            bench=wiring.workbench(config),
            manifest=curate(
                [call for call in store.calls() if call.policy_version == 0], store.feedback(), config.curation
            ),
            messages=options.messages,
        )
        found = run(field)
    show(
        found,
        [
            ("both rules", lambda row: f"{row['follow_rate']:.0%}"),
            ("95% interval", lambda row: "{:.0%} to {:.0%}".format(*row["follow_rate_ci"])),
            ("brief", lambda row: f"{row['by_rule']['brief']:.0%}"),
            ("sign-off", lambda row: f"{row['by_rule']['sign_off']:.0%}"),
            ("regression", lambda row: f"{row['regression_accuracy']:.1%}"),
            ("KL, nats/token", lambda row: f"{row['kl_general_nats_per_token']:.3f}"),
            ("learning, s", lambda row: f"{row['learning_s']:.0f}"),
        ],
    )
    print(f"Figures: {write_results('feedback_learning', found)}")


if __name__ == "__main__":
    main()

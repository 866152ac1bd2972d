"""One working day, a night of learning, and the next day, live: `practicum demo` or `make demo`.

Everything that happens here happens through public doors: the agent is `agent.py` in its own process with two
environment variables, people's feedback goes through the three-line client, learning is `practicum learn`. The house
style is in `rules.py`, for the graders alone; no prompt holds any of it, and the figures say how often it was found
in one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import httpx
from people import Staff, load
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rules import GRADERS, SIGN_OFF

from practicum.client import Client
from practicum.evals.stats import Interval, proportion

HERE = Path(__file__).parent
PRACTICUM = [sys.executable, "-m", "practicum"]
console = Console()


@dataclass(frozen=True, slots=True)
class Plan:
    """How many messages the first day has, how many are held out for before and after, and extra settings."""

    first_day: int
    held_out: int
    settings: tuple[str, ...] = ()


FULL = Plan(first_day=112, held_out=48)
SHORT = Plan(
    first_day=28,
    held_out=6,
    settings=(
        "curation.min_heldout_sessions=4",
        "curation.min_train_sessions=8",
        "learn.clone_epochs=1",
        "gate.min_cases=4",
        "evals.divergence_prompts=4",
    ),
)


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer the agent got, as a grader sees it."""

    message: str
    question: str
    call_id: str
    model: str
    text: str
    finish_reason: str

    def follows(self, rule: str) -> bool:
        return bool(GRADERS[rule](self))


class Office:
    """The server and the keys of one demo home."""

    def __init__(self, home: Path, plan: Plan) -> None:
        self.home = home
        self.options = ["--home", str(home), "--config", str(home / "practicum.toml")]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        home.mkdir(parents=True)
        (home / "practicum.toml").write_text(_toml(plan), encoding="utf-8")
        self.key = self._output("keys", "create", "maple-finch", "--scope", "sample", "--scope", "feedback")

    def _output(self, *arguments: str) -> str:
        return subprocess.run(
            [*PRACTICUM, *arguments, *self.options], check=True, capture_output=True, text=True
        ).stdout.strip()

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Run `practicum serve` until the context ends."""
        log = (self.home / "serve.log").open("w", encoding="utf-8")
        server = subprocess.Popen(
            [*PRACTICUM, "serve", *self.options, "--port", str(self.port)], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            self._wait(server)
            yield
        finally:
            server.terminate()
            server.wait()
            log.close()

    def _wait(self, server: subprocess.Popen[bytes]) -> None:
        with console.status("Starting the server (the first time, the model is unpacked)"):
            while not self.ready():
                if server.poll() is not None:
                    raise SystemExit("The server stopped:\n" + (self.home / "serve.log").read_text("utf-8"))
                time.sleep(0.3)

    def ready(self) -> dict[str, Any]:
        """What /readyz says, or nothing while it does not answer."""
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(f"{self.url}/readyz", timeout=5)
            if answer.status_code == 200:
                return dict(answer.json())
        return {}

    def agent(self, messages: list[dict[str, str]], title: str) -> list[Answered]:
        """The team's agent in its own process; all it knows of Practicum is an address and a key."""
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": self.key,
        }
        process = subprocess.Popen(
            [sys.executable, str(HERE / "agent.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("".join(json.dumps(message) + "\n" for message in messages))
        process.stdin.close()
        questions = {message["id"]: message["text"] for message in messages}
        answers = []
        for line in track(process.stdout, title, total=len(messages), console=console):
            row = json.loads(line)
            answers.append(
                Answered(
                    row["id"], questions[row["id"]], row["completion"], row["model"], row["text"], row["finish_reason"]
                )
            )
        if process.wait() != 0 or len(answers) != len(messages):
            raise SystemExit(f"The agent failed; see {self.home / 'serve.log'}.")
        return answers

    def learn(self) -> dict[str, Any]:
        """`practicum learn`, its progress shown as it comes."""
        done = subprocess.run(
            [*PRACTICUM, "learn", *self.options, "--json"], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode not in (0, 3):
            raise SystemExit(f"Learning failed with status {done.returncode}.")
        return dict(json.loads(done.stdout))

    def report(self, page: Path) -> dict[str, Any]:
        """`practicum report --json`, and the page."""
        return dict(json.loads(self._output("report", "--json", "--html", str(page))))


def _toml(plan: Plan) -> str:
    sections: dict[str, list[str]] = {"evals": [f"graders = {json.dumps(str(HERE / 'rules.py'))}"]}
    for setting in plan.settings:
        key, _, value = setting.partition("=")
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append(f"{name} = {value}")
    return "\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())


def split(plan: Plan) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The first day's messages (days 1-4), and held-out ones (day 7) from customers who had not written before."""
    rows: list[dict[str, Any]] = load("messages.jsonl")
    known = {row["customer"] for row in rows if row["day"] <= 4}
    held = [row for row in rows if row["day"] == 7 and row["customer"] not in known]
    return [row for row in rows if row["day"] <= 4][: plan.first_day], held[: plan.held_out]


def give_feedback(office: Office, answers: list[Answered]) -> dict[str, int]:
    """Everybody reads; most say something."""
    staff, counts = Staff(), {"comment": 0, "correction": 0, "thumb": 0, "silence": 0}
    with Client(base_url=office.url, api_key=office.key) as client:
        give = {"comment": client.comment, "correction": client.correct, "thumb": client.thumb}
        for answer in answers:
            reaction = staff.react(answer.text, answer.finish_reason)
            counts[reaction.form if reaction else "silence"] += 1
            if reaction is not None:
                give[reaction.form](answer.call_id, reaction.value, user=reaction.person)
    return counts


def rate(answers: list[Answered], rules: list[str]) -> Interval:
    """Share of the answers that follow all of `rules`, with its Wilson interval."""
    return proportion(sum(all(a.follows(rule) for rule in rules) for a in answers), len(answers))


def show(before: list[Answered], after: list[Answered]) -> None:
    """The same messages and the same agent, side by side."""
    table = Table(title="The same agent, the same held-out messages", show_lines=True)
    for column in ("customer", "before", "after"):
        table.add_column(column, ratio=1, overflow="fold")
    for old, new in list(zip(before, after, strict=True))[:4]:
        table.add_row(old.question, old.text, new.text)
    console.print(table)


def rates_table(before: list[Answered], after: list[Answered]) -> None:
    """Follow rates with intervals."""
    table = Table(title=f"House style on {len(after)} held-out messages")
    for column in ("rule", "before", "after", "95% interval"):
        table.add_column(column)
    for name, rules in [*((rule, [rule]) for rule in GRADERS), ("both", list(GRADERS))]:
        old, new = rate(before, rules), rate(after, rules)
        table.add_row(name, f"{old.estimate:.0%}", f"{new.estimate:.0%}", f"{new.low:.0%} to {new.high:.0%}")
    console.print(table)


def prompts_with_rules(office: Office) -> int:
    """How many recorded requests hold the sign-off, or anything but the agent's system prompt and the message."""
    from agent import SYSTEM_PROMPT

    from practicum.store import open_store

    found = 0
    with open_store(office.home / "practicum.db") as store:
        for call in store.calls():
            contents = [message["content"] for message in call.request["messages"]]
            found += contents[0] != SYSTEM_PROMPT or len(contents) != 2 or any(SIGN_OFF in text for text in contents)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-serving", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--home", type=Path, default=Path(".practicum/demo"))
    options = parser.parse_args()
    began = time.monotonic()
    plan = SHORT if options.short else FULL
    shutil.rmtree(options.home, ignore_errors=True)
    office = Office(options.home.resolve(), plan)
    first_day, held_out = split(plan)
    with office.serving():
        console.rule("Before")
        before = office.agent(held_out, "Held-out messages, answered by the model as it is")
        console.rule("The first day")
        answers = office.agent(first_day, "Customers write, the agent answers")
        counts = give_feedback(office, answers)
        console.print("People say: " + ", ".join(f"{n} {form}" for form, n in counts.items()))
        console.rule("Learning")
        learned = office.learn()
        console.print(f"Gate: {learned['verdict']}. {learned['reason']}")
        wanted = learned["decision"]["version"] if learned["verdict"] == "promote" else 0
        while office.ready().get("serving_version") != wanted:
            time.sleep(0.2)
        console.rule("The second day")
        after = office.agent(held_out, f"The same held-out messages, version {wanted}")
        show(before, after)
        rates_table(before, after)
        page = (options.results / "demo.html").resolve()
        page.parent.mkdir(parents=True, exist_ok=True)
        report = office.report(page)
        figures = summary(office, plan, before, after, counts, learned, report, time.monotonic() - began)
        name = "demo-short" if options.short else "demo"
        (options.results / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        console.print(f"Report: {page}\nFigures: {options.results / name}.json   ({figures['wall_s']:.0f} s in all)")
        if options.keep_serving:
            keep(office)


def summary(
    office: Office,
    plan: Plan,
    before: list[Answered],
    after: list[Answered],
    counts: dict[str, int],
    learned: dict[str, Any],
    report: dict[str, Any],
    wall_s: float,
) -> dict[str, Any]:
    """The figures file: what was printed, with the machine, the versions and the command."""
    rules = list(GRADERS)
    start, end = rate(before, rules), rate(after, rules)
    gate = (learned["decision"] or {}).get("figures", {})
    return {
        "start_follow_rate": start.estimate,
        "start_follow_rate_ci": [start.low, start.high],
        "end_follow_rate": end.estimate,
        "follow_rate_ci": [end.low, end.high],
        "by_rule": {
            rule: {"start": rate(before, [rule]).estimate, "end": rate(after, [rule]).estimate} for rule in rules
        },
        "held_out_messages": len(after),
        "first_day_messages": plan.first_day,
        "feedback": counts,
        "prompts_with_rule_text": prompts_with_rules(office),
        "verdict": learned["verdict"],
        "regression_delta_points": 100 * (gate.get("regression_after", 0.0) - gate.get("regression_before", 0.0)),
        "kl_general_nats_per_token": gate.get("kl_general"),
        "gate_rates": gate.get("rates"),
        "gate_reason": learned["reason"],
        "policy_versions": {"before": before[0].model, "after": after[0].model},
        "wall_s": wall_s,
        "command": "practicum demo" + (" --short" if plan is SHORT else ""),
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "versions": {name: installed(name) for name in ("practicum", "torch", "transformers", "peft", "openai")},
    }


def keep(office: Office) -> None:
    """Leave the server up until it is interrupted."""
    console.print(
        f"\nServing at {office.url}. Try:\n\n"
        f"  curl {office.url}/v1/chat/completions -H 'Authorization: Bearer {office.key}' \\\n"
        f"    -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"model": "practicum", "max_tokens": 96, "messages": [{{"role": "user", '
        f'"content": "Where is my parcel?"}}]}}\'\n\nCtrl-C stops it.'
    )
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()

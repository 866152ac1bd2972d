"""Are the recorded tokens those that were sampled? Recompute the log-probability of every one and compare.

    python benchmarks/token_exactness.py                    200 calls on the default model, in a home of its own
    python benchmarks/token_exactness.py --home .practicum  your own records

Calls go through the `openai` SDK to `practicum serve`: streaming and not, one turn and several, tools on offer or not,
temperatures 0, 0.7 and 1.0, top_p 1 and 0.9. Each recorded id is then scored again under the version that stands beside
it, by a forward pass over the whole sequence: no cache, other neighbours in the batch. A second part promotes two
versions while answers stream: a token must agree with the version it names and with no other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.serving import serving, train_adapters, write_results
from benchmarks.traffic import Asked, make_calls, stream_through_swaps

from practicum.config import Config, load_config
from practicum.engines.embedded.threads import configure_threads
from practicum.episodes.rows import training_rows
from practicum.episodes.settle import settle_kinds
from practicum.policies import Registry
from practicum.store import create_key, open_store
from practicum.types.calls import ModelCall
from practicum.types.local import LocalPolicy, ScoreRequest

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Checked:
    """A recorded call and |recorded - recomputed| for each of its tokens, under the version it names."""

    call: ModelCall
    deltas: tuple[float, ...]


@dataclass(slots=True)
class Findings:
    """What a check found. `faults` should be empty."""

    checked: list[Checked] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unknown: int = 0
    episodes: int = 0
    turns: Counter[int] = field(default_factory=Counter)

    def figures(self) -> dict[str, Any]:
        whole = summary(self.checked)
        groups = {name: summary(group) for name, group in _groups(self.checked).items()}
        return whole | {
            "groups": groups,
            "episodes": self.episodes,
            "episodes_by_turns": dict(sorted(self.turns.items())),
            "calls_with_unknown_logprobs": self.unknown,
            "faults": self.faults,
        }


# -- checking them ---------------------------------------------------------------------------------------------------


def check_store(home: Path, policy: LocalPolicy, load: Callable[[Registry, int], None]) -> Findings:
    """Recompute every recorded call of a home; `load` makes a version known to `policy`."""
    findings = Findings()
    with open_store(home / "practicum.db") as store:
        calls = store.calls()
        registry = Registry(store, home / "policies")
        for version in sorted({version for call in calls for version in call.versions}):
            load(registry, version)
    known = [call for call in calls if call.completion_ids and None not in call.logprobs]
    findings.unknown = sum(None in call.logprobs for call in calls)
    findings.faults += [fault for call in calls for fault in misaligned(call)]
    findings.checked = [Checked(call, deltas) for call, deltas in zip(known, recompute(policy, known), strict=True)]
    findings.faults += [
        f"{one.call.call_id}: off by {max(one.deltas):.1e}" for one in findings.checked if max(one.deltas) > TOLERANCE
    ]
    sessions: dict[str, list[ModelCall]] = defaultdict(list)
    for call in calls:
        sessions[call.session_id].append(call)
    for session in sessions.values():
        _check_session(session, findings)
    return findings


def recompute(policy: LocalPolicy, calls: Sequence[ModelCall], version: int | None = None) -> list[tuple[float, ...]]:
    """|recorded - recomputed| [T] for each call, under the version it names or under another one."""
    requests = [
        ScoreRequest(
            prompt_ids=call.prompt_ids,
            completion_ids=call.completion_ids,
            version=call.versions[0] if version is None else version,
            temperature=call.temperature if call.temperature > 0 else 1.0,
        )
        for call in calls
    ]
    return [
        tuple(abs(kept - value) for kept, value in zip(call.logprobs, scored, strict=True) if kept is not None)
        for call, scored in zip(calls, policy.score(requests), strict=True)
    ]


def misaligned(call: ModelCall) -> list[str]:
    """What does not fit together in one record."""
    lengths = {len(call.completion_ids), len(call.logprobs), len(call.sampled_logprobs), len(call.versions)}
    faults = []
    if len(lengths) > 1:
        faults.append(f"{call.call_id}: ids, logprobs and versions have lengths {sorted(lengths)}")
    if set(call.versions) - {call.policy_version}:
        faults.append(f"{call.call_id}: began on version {call.policy_version}, tokens are of {set(call.versions)}")
    return faults


def _check_session(calls: Sequence[ModelCall], findings: Findings) -> None:
    """Chains are append-only, and every token that may train is in the rows once."""
    by_id = {call.call_id: call for call in calls}
    for call in calls:
        parent = by_id.get(call.parent_call_id or "")
        if parent is None or call.fork_reason is not None:
            continue
        served = parent.prompt_ids + parent.completion_ids
        if call.prompt_ids[: len(served)] != served:
            findings.faults.append(f"{call.call_id}: its prompt does not begin with what {parent.call_id} served")
    rows = training_rows(calls)
    findings.episodes += len(rows.episodes)
    findings.turns.update(len(episode.spans) for episode in rows.episodes)
    trained = sum(row.trained_tokens for row in rows.rows)
    expected = sum(len(call.completion_ids) for call in settle_kinds(calls) if call.untrainable_reason is None)
    if trained != expected:
        findings.faults.append(f"session {calls[0].session_id}: {trained} tokens in rows, {expected} may train")


def check_asked(home: Path, asked: Iterable[Asked]) -> list[str]:
    """Faults between what callers saw and what is on record: usage, and one chain a conversation."""
    faults = []
    conversations: dict[int, list[ModelCall]] = defaultdict(list)
    with open_store(home / "practicum.db") as store:
        for one in asked:
            call = store.get_call(one.call_id)
            if call is None or call.status != "complete":
                faults.append(f"{one.call_id}: is {call.status if call else 'not on record'}")
                continue
            if (one.prompt_tokens, one.completion_tokens) != (len(call.prompt_ids), len(call.completion_ids)):
                faults.append(f"{one.call_id}: usage {one.prompt_tokens}+{one.completion_tokens} is not what is kept")
            conversations[one.conversation].append(call)
    for number, calls in conversations.items():
        chain = training_rows(calls).episodes
        if len(chain) != 1 or [span.call_id for span in chain[0].spans] != [call.call_id for call in calls]:
            reasons = [call.fork_reason for call in calls]
            faults.append(f"conversation {number}: {len(chain)} episodes for {len(calls)} turns, {reasons}")
    return faults


def summary(checked: Sequence[Checked]) -> dict[str, Any]:
    deltas = [delta for one in checked for delta in one.deltas]
    if not deltas:
        return {"calls": 0, "tokens": 0}
    return {
        "calls": len(checked),
        "tokens": len(deltas),
        "max_delta": max(deltas),
        "mean_delta": sum(deltas) / len(deltas),
        "share_within_1e-4": sum(delta <= TOLERANCE for delta in deltas) / len(deltas),
    }


def _groups(checked: Sequence[Checked]) -> dict[str, list[Checked]]:
    groups: dict[str, list[Checked]] = defaultdict(list)
    for one in checked:
        body = one.call.request
        groups["streamed" if body.get("stream") else "whole body"].append(one)
        groups["later turn" if one.call.parent_call_id else "first turn"].append(one)
        groups[f"temperature {one.call.temperature:g}"].append(one)
        if (body.get("top_p") or 1.0) < 1.0:
            groups["top_p below 1"].append(one)
        if body.get("tools"):
            groups["tools on offer"].append(one)
        groups[f"version {one.call.policy_version}"].append(one)
    return dict(sorted(groups.items()))


# -- swaps in the middle of streams ----------------------------------------------------------------------------------


def check_versions(home: Path, call_ids: Iterable[str], versions: Sequence[int], policy: LocalPolicy) -> dict[str, Any]:
    """Each token agrees with the version it names, and no call agrees with another version."""
    with open_store(home / "practicum.db") as store:
        calls = [call for call_id in call_ids if (call := store.get_call(call_id)) is not None]
    table: dict[str, Any] = {}
    faults: list[str] = [fault for call in calls for fault in misaligned(call)]
    for recorded in versions:
        own = [call for call in calls if call.policy_version == recorded]
        for other in versions:
            checked = [Checked(c, d) for c, d in zip(own, recompute(policy, own, other), strict=True)]
            table[f"sampled by {recorded}, scored by {other}"] = summary(checked)
            for one in checked:
                agrees = max(one.deltas) <= TOLERANCE
                if agrees != (recorded == other):
                    faults.append(f"{one.call.call_id} of version {recorded}: max {max(one.deltas):.1e} under {other}")
    return {"calls": len(calls), "table": table, "faults": faults}


# -- the command -----------------------------------------------------------------------------------------------------


def local_policy(folder: Path) -> tuple[LocalPolicy, Callable[[Registry, int], None], Any]:
    """A policy that scores, a function that loads a version into it, and the model itself."""
    from practicum.engines.embedded import models
    from practicum.engines.embedded.sampler import EmbeddedSampler
    from practicum.engines.embedded.settings import SamplerSettings
    from practicum.engines.embedded.workbench import LocalEngine

    model, _ = models.load(folder)
    engine = LocalEngine(EmbeddedSampler(model, settings=SamplerSettings(max_versions=1000)))

    def load(registry: Registry, version: int) -> None:
        policy = registry.verify(version)
        if policy.adapter_path is not None:
            engine.sampler.weights.load(version, Path(policy.adapter_path), policy.digest)

    return engine, load, model


def model_folder(config: Config) -> Path:
    configure_threads(config.model.threads)
    from practicum.engines.embedded import models

    return models.resolve(config.model.id, config.model.cache_path)


def measure(config: Config, options: Sequence[str], calls: int) -> dict[str, Any]:
    """Serve in a home of its own, make calls, check them, then the same across two swaps."""
    policy, load, model = local_policy(model_folder(config))
    with tempfile.TemporaryDirectory() as place:
        home = Path(place) / "home"
        with open_store(home / "practicum.db") as store:
            key = create_key(store, "benchmark", ["sample"])
            registry = Registry(store, home / "policies")
            adapters = train_adapters(model, Path(place), 2)
            versions = [registry.register_candidate(adapter, parent=0).version for adapter in adapters]
        with serving(home, *options, "--set", "gateway.policy_poll_s=0.1") as up:
            asked = make_calls(up.url, key, calls)
            swapped = stream_through_swaps(up.url, key, home, versions, up.wait_for_version)
        findings = check_store(home, policy, load)
        findings.faults += check_asked(home, asked)
        across = check_versions(home, swapped["call_ids"], [0, *versions], policy)
    return findings.figures() | {"across_swaps": across | {"streams_across_a_swap": swapped["straddled"]}}


def show(figures: Mapping[str, Any]) -> None:
    table = Table("", "calls", "tokens", "max |Δ|", "mean |Δ|", "within 1e-4")
    across = figures.get("across_swaps", {}).get("table", {})
    for name, row in {"all": figures, **figures["groups"], **across}.items():
        if row["tokens"]:
            shares = f"{row['max_delta']:.1e}", f"{row['mean_delta']:.1e}", f"{row['share_within_1e-4']:.4%}"
            table.add_row(name, str(row["calls"]), str(row["tokens"]), *shares)
    console = Console()
    console.print(table)
    console.print(f"episodes by turns: {figures['episodes_by_turns']}")
    for fault in [*figures["faults"], *figures.get("across_swaps", {}).get("faults", ())]:
        console.print(f"FAULT {fault}", markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="check the records of this home instead of making new ones")
    parser.add_argument("--config", type=Path, help="TOML file")
    parser.add_argument("--model", help="a name, a folder or a hub id; default the configured one")
    parser.add_argument("--calls", type=int, default=200)
    chosen = parser.parse_args()
    options = ["--config", str(chosen.config)] if chosen.config else []
    options += ["--model", chosen.model] if chosen.model else []
    config = load_config(chosen.config, {"model.id": chosen.model} if chosen.model else {})
    if chosen.home is not None:
        if not (chosen.home / "practicum.db").is_file():
            parser.error(f"{chosen.home} has no practicum.db; give the folder that `practicum serve` writes to")
        policy, load, _ = local_policy(model_folder(config))
        figures = check_store(chosen.home, policy, load).figures()
    else:
        figures = measure(config, options, chosen.calls)
    show(figures)
    print(write_results("token_exactness" if chosen.home is None else "token_exactness_home", figures))
    return 1 if figures["faults"] or figures.get("across_swaps", {}).get("faults") else 0


if __name__ == "__main__":
    sys.exit(main())

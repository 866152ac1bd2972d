"""The benchmark's own check, on a tiny real model: calls through the SDK, across swaps, recomputed one by one.

Pins: recorded logprobs are those of the recorded ids under the recorded version, and under no other, to 1e-4; ids,
logprobs, versions and usage have one length; a conversation is one append-only chain; a fault is found where there is
one.
"""

from dataclasses import replace
from pathlib import Path

from benchmarks import token_exactness, traffic
from benchmarks.serving import train_adapters
from tests.e2e.conftest import Cli, settings, tiny_folder

from practicum.policies import Registry
from practicum.store import create_key, open_store

__all__ = ["tiny_folder"]
CALLS = 48


def test_every_recorded_token_is_the_one_that_was_sampled(tiny_folder: Path, tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", settings(tiny_folder))
    policy, load, model = token_exactness.local_policy(tiny_folder)
    with open_store(cli.home / "practicum.db") as store:
        key = create_key(store, "benchmark", ["sample"])
        registry = Registry(store, cli.home / "policies")
        adapters = train_adapters(model, tmp_path, 2)
        versions = [registry.register_candidate(adapter, parent=0).version for adapter in adapters]
    with cli.serving("--set", "gateway.policy_poll_s=0.05") as up:
        asked = traffic.make_calls(up.url, key, CALLS, turns_with_tools=1)
        swapped = traffic.stream_through_swaps(up.url, key, cli.home, versions, up.wait_for_version, max_tokens=64)
    findings = token_exactness.check_store(cli.home, policy, load)
    figures = findings.figures()
    assert figures["faults"] == [] and figures["calls_with_unknown_logprobs"] == 0
    assert figures["max_delta"] <= token_exactness.TOLERANCE and figures["share_within_1e-4"] == 1.0
    assert {"streamed", "whole body", "later turn", "tools on offer", "top_p below 1", "temperature 0"} <= set(
        figures["groups"]
    )
    assert len(asked) == CALLS and token_exactness.check_asked(cli.home, asked) == []
    assert figures["episodes_by_turns"][4] > 2
    across = token_exactness.check_versions(cli.home, swapped["call_ids"], [0, *versions], policy)
    assert across["faults"] == [] and swapped["straddled"] > 0
    assert all(across["table"][f"sampled by {version}, scored by {version}"]["calls"] for version in (0, *versions))

    one = findings.checked[0].call
    wrong = replace(one, completion_ids=(*one.completion_ids[:-1], one.completion_ids[-1] ^ 1))
    ((*_, last),) = token_exactness.recompute(policy, [wrong])
    assert last > token_exactness.TOLERANCE
    assert token_exactness.misaligned(replace(one, versions=(*one.versions, 7)))

"""Swaps under load on a tiny real model, decided in another process than the server's.

Pins: twenty streams run on through three promotions and a rollback without an error, each on the version that began
it; no pause that the engine's own steps do not explain; a version that left memory long ago is served again after a
rollback to it.
"""

from pathlib import Path

import pytest
from benchmarks import swap_under_load
from benchmarks.serving import decide, train_adapters
from openai import OpenAI

from practicum.policies import Registry
from practicum.store import create_key, open_store
from tests.e2e.conftest import Cli

POLL = ("--set", "gateway.policy_poll_s=0.05")


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> object:
    from practicum.engines.embedded import models

    return models.load(tiny_folder)[0]


def test_twenty_streams_run_on_through_promotions_and_a_rollback(cli: Cli, model: object) -> None:
    with open_store(cli.home / "practicum.db") as store:
        key = create_key(store, "benchmark", ["sample"])
    options = ["--config", str(cli.config), *POLL]
    found = swap_under_load.swaps(cli.home, key, model, options, streams=20, max_tokens=24)
    assert found["errors"] == [] and found["answers_with_tokens_of_two_versions"] == 0
    assert found["moves"] == ["promote 1", "promote 2", "promote 3", "rollback 2"]
    assert set(found["answers_by_version"]) == {0, 1, 2, 3}
    assert found["unexplained_gap_s"]["max"] < swap_under_load.MOST_UNEXPLAINED_S


def test_a_rollback_to_a_version_that_left_memory_serves_it_again(cli: Cli, model: object, tmp_path: Path) -> None:
    with open_store(cli.home / "practicum.db") as store:
        key = create_key(store, "benchmark", ["sample"])
        registry = Registry(store, cli.home / "policies")
        adapters = train_adapters(model, tmp_path, 6, steps=1)
        versions = [registry.register_candidate(adapter, parent=0).version for adapter in adapters]
        with cli.serving(*POLL) as served:
            client = OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0)

            def answered_by(name: str = "practicum") -> str:
                ask = [{"role": "user", "content": "the lamp is broken"}]
                return client.chat.completions.create(model=name, messages=ask, max_tokens=4).model  # type: ignore[arg-type]

            for version in versions:
                decide(registry, version, "promote")
                served.wait_for_version(version)
                assert answered_by() == f"practicum@{version}"
            for version in versions:
                assert answered_by(f"practicum@{version}") == f"practicum@{version}"
            assert answered_by() == f"practicum@{versions[-1]}"
            decide(registry, versions[0], "rollback")
            served.wait_for_version(versions[0])
            assert answered_by() == f"practicum@{versions[0]}"

"""The registry: whole adapters only, and a pointer that moves with a decision record or not at all."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from practicum.errors import Conflict, CorruptArtifact, NotFound, StoreError, UsageError
from practicum.policies import Registry
from practicum.store import Store, open_store
from practicum.types.digests import folder_digest
from practicum.types.policies import Decision, DecisionVerdict, GateCheck

_numbers = itertools.count(1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


@pytest.fixture
def registry(store: Store, tmp_path: Path) -> Registry:
    return Registry(store, tmp_path / "policies")


def make_adapter(folder: Path, content: str = "weights") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_text(content)
    (folder / "README.md").write_text("an adapter")
    return folder


def decide(version: int, previous: int | None, verdict: DecisionVerdict, **changes: Any) -> Decision:
    values: dict[str, Any] = {
        "decision_id": f"dec_{next(_numbers)}",
        "version": version,
        "previous": previous,
        "verdict": verdict,
        "reason": "because",
        "actor": "test",
        "created_at": 1.0,
    }
    return Decision(**(values | changes))


def statuses(registry: Registry) -> list[str]:
    return [policy.status for policy in registry.list()]


def test_the_base_exists_from_the_first_open_and_is_live(registry: Registry) -> None:
    base = registry.base()
    assert (base.version, base.status, base.adapter_path, base.parent) == (0, "live", None, None)
    assert registry.live() == base
    assert registry.verify(0) == base


def test_a_candidate_is_a_verified_copy(registry: Registry, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "run")
    candidate = registry.register_candidate(source, 0, "run_1", "first try")
    assert (candidate.version, candidate.parent, candidate.status) == (1, 0, "candidate")
    assert (candidate.run_id, candidate.note) == ("run_1", "first try")
    assert candidate.adapter_path == str(tmp_path / "policies" / "v1")
    assert candidate.digest == folder_digest(source) == folder_digest(Path(candidate.adapter_path))
    assert registry.get(1) == candidate == registry.verify(1)
    assert registry.live().version == 0
    (source / "adapter_model.safetensors").write_text("changed afterwards")
    registry.verify(1)


@pytest.mark.parametrize("spoil", ["pickle", "subfolder", "link", "no_config", "no_weights", "no_folder"])
def test_what_is_no_adapter_is_refused_and_takes_no_version(registry: Registry, tmp_path: Path, spoil: str) -> None:
    source = make_adapter(tmp_path / "run")
    match spoil:
        case "pickle":
            (source / "adapter_model.bin").write_text("")
        case "subfolder":
            (source / "more").mkdir()
        case "link":
            (source / "link.json").symlink_to(source / "adapter_config.json")
        case "no_config":
            (source / "adapter_config.json").unlink()
        case "no_weights":
            (source / "adapter_model.safetensors").unlink()
        case "no_folder":
            source = tmp_path / "none"
    with pytest.raises(UsageError):
        registry.register_candidate(source, 0)
    assert [policy.version for policy in registry.list()] == [0]
    assert registry.register_candidate(make_adapter(tmp_path / "good"), 0).version == 1


def test_a_parent_must_exist(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        registry.register_candidate(make_adapter(tmp_path / "run"), 7)


def test_a_folder_that_cannot_be_written_is_a_store_error(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        Registry(store, tmp_path / "file" / "policies").register_candidate(make_adapter(tmp_path / "run"), 0)
    assert len(store.policies()) == 1


def test_promotion_moves_pointer_statuses_and_record_together(registry: Registry, tmp_path: Path) -> None:
    registry.register_candidate(make_adapter(tmp_path / "run"), 0)
    check = GateCheck(
        name="wins", rule="low > 0", estimate=0.1, low=0.0, high=float("inf"), bound=0.0, passed=True, n=9
    )
    decision = decide(1, 0, "promote", checks=(check,), figures={"nan": float("nan")})
    live = registry.apply_decision(decision)
    assert (live.version, live.status) == (1, "live")
    assert registry.live() == live
    assert statuses(registry) == ["retired", "live"]
    assert [found.checks for found in registry.decisions(1)] == [(check,)]
    assert registry.apply_decision(decision) == live
    assert len(registry.decisions()) == 1


def test_a_refused_version_can_never_be_promoted(registry: Registry, tmp_path: Path) -> None:
    registry.register_candidate(make_adapter(tmp_path / "run"), 0)
    assert registry.apply_decision(decide(1, 0, "refuse")).version == 0
    assert statuses(registry) == ["live", "refused"]
    with pytest.raises(Conflict, match="refused"):
        registry.apply_decision(decide(1, 0, "promote"))
    with pytest.raises(Conflict, match="refused"):
        registry.apply_decision(decide(1, 0, "rollback"))
    assert len(registry.decisions()) == 1


def test_rollback_withdraws_and_can_be_undone(registry: Registry, tmp_path: Path) -> None:
    registry.register_candidate(make_adapter(tmp_path / "run"), 0)
    registry.apply_decision(decide(1, 0, "promote"))
    assert registry.apply_decision(decide(0, 1, "rollback")).version == 0
    assert statuses(registry) == ["live", "withdrawn"]
    assert registry.apply_decision(decide(1, 0, "rollback")).version == 1
    assert statuses(registry) == ["withdrawn", "live"]


def test_rollback_to_a_version_that_was_never_released_is_refused(registry: Registry, tmp_path: Path) -> None:
    registry.register_candidate(make_adapter(tmp_path / "run"), 0)
    with pytest.raises(Conflict, match="candidate"):
        registry.apply_decision(decide(1, 0, "rollback"))
    with pytest.raises(Conflict, match="live"):
        registry.apply_decision(decide(0, 0, "rollback"))


@pytest.mark.parametrize("previous", [None, 1])
def test_a_decision_against_a_stale_live_version_is_refused(
    registry: Registry, tmp_path: Path, previous: int | None
) -> None:
    registry.register_candidate(make_adapter(tmp_path / "run"), 0)
    with pytest.raises(Conflict, match="Version 0 is live"):
        registry.apply_decision(decide(1, previous, "promote"))
    assert statuses(registry) == ["live", "candidate"]
    assert registry.decisions() == []


def test_a_decision_id_is_used_once(registry: Registry, tmp_path: Path) -> None:
    registry.register_candidate(make_adapter(tmp_path / "run"), 0)
    registry.apply_decision(decide(1, 0, "promote", decision_id="dec_same"))
    with pytest.raises(Conflict, match="another content"):
        registry.apply_decision(decide(0, 1, "rollback", decision_id="dec_same"))


def test_unknown_versions_are_not_found(registry: Registry) -> None:
    for call in (registry.get, registry.verify):
        with pytest.raises(NotFound):
            call(9)
    with pytest.raises(NotFound):
        registry.apply_decision(decide(9, 0, "refuse"))


def test_a_dropped_candidate_keeps_its_record_and_nothing_else(registry: Registry, tmp_path: Path) -> None:
    kept, dropped = (
        registry.register_candidate(make_adapter(tmp_path / name, name), parent=0, note=f"weights {name}")
        for name in ("a", "b")
    )
    for _ in range(2):
        registry.drop(dropped.version)
    assert statuses(registry) == ["live", "candidate", "dropped"]
    assert [path.name for path in (tmp_path / "policies").iterdir()] == [f"v{kept.version}"]
    assert registry.get(dropped.version).digest == dropped.digest
    with pytest.raises(NotFound, match=r"were dropped \(weights b\)"):
        registry.verify(dropped.version)
    for verdict, error in (("promote", NotFound), ("refuse", Conflict), ("rollback", NotFound)):
        with pytest.raises(error):
            registry.apply_decision(decide(dropped.version, 0, verdict))  # type: ignore[arg-type]
    registry.apply_decision(decide(kept.version, 0, "promote"))
    for version in (0, kept.version):
        with pytest.raises(Conflict, match="only a candidate can be dropped"):
            registry.drop(version)
    with pytest.raises(NotFound):
        registry.drop(9)
    assert registry.verify(kept.version).status == "live"


def test_a_drop_that_was_killed_half_way_is_finished_by_the_next(store: Store, tmp_path: Path) -> None:
    def dies(name: str) -> None:
        if name == "dropped":
            raise RuntimeError

    folder = tmp_path / "policies"
    made = Registry(store, folder).register_candidate(make_adapter(tmp_path / "a"), parent=0)
    with pytest.raises(RuntimeError):
        Registry(store, folder, crashpoint=dies).drop(made.version)
    assert (folder / "v1").exists() and Registry(store, folder).get(1).status == "dropped", "nobody can name it"
    Registry(store, folder).drop(made.version)
    assert not (folder / "v1").exists()


@pytest.mark.parametrize("damage", ["changed", "truncated", "missing", "added", "gone", "link"])
def test_g12_a_damaged_adapter_never_goes_live(registry: Registry, tmp_path: Path, damage: str) -> None:
    candidate = registry.register_candidate(make_adapter(tmp_path / "run"), 0)
    assert candidate.adapter_path is not None
    folder = Path(candidate.adapter_path)
    weights = folder / "adapter_model.safetensors"
    match damage:
        case "changed":
            weights.write_text("WEIGHTS")
        case "truncated":
            weights.write_text("weigh")
        case "missing":
            (folder / "README.md").unlink()
        case "added":
            (folder / "more.json").write_text("{}")
        case "gone":
            folder.rename(tmp_path / "elsewhere")
        case "link":
            weights.rename(tmp_path / "w")
            weights.symlink_to(tmp_path / "w")
    with pytest.raises(CorruptArtifact):
        registry.apply_decision(decide(1, 0, "promote"))
    assert registry.live().version == 0
    assert registry.decisions() == []


def test_a_home_that_moves_stays_valid(registry: Registry, store: Store, tmp_path: Path) -> None:
    registry.register_candidate(make_adapter(tmp_path / "run"), 0)
    (tmp_path / "policies").rename(tmp_path / "moved")
    Registry(store, tmp_path / "moved").verify(1)

"""What trackers get of a run, and what becomes of one that fails."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from practicum.config import Config
from practicum.errors import UsageError
from practicum.live.trackers import Trackers


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars by name, from the event file: length, two checksums and a message each."""
    (path,) = folder.iterdir()
    data, found = path.read_bytes(), {}
    while data:
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, round(value.simple_value, 6)))
        data = data[16 + length :]
    return found


def test_numbers_of_each_step_reach_tensorboard(tmp_path: Path) -> None:
    with Trackers(["tensorboard"], Config(home=tmp_path)) as chosen:
        chosen.update("train", 1, 2, {"reward": 0.25, "phase": "train", "skipped": True, "kl": float("nan")})
        chosen.update("train", 2, 2, {"reward": 0.5})
        chosen.update("register", 1, 1, {})
    assert events(tmp_path / "tensorboard") == {"train/reward": [(1, 0.25), (2, 0.5)]}


def test_an_unknown_tracker_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="no tracker 'tensorbored'") as wrong:
        Trackers(["tensorbored"], Config())
    assert "tensorboard, wandb, mlflow, trackio" in wrong.value.hint


def test_a_tracker_that_fails_is_left_out_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[float] = []

    def broken(step: int, figures: Mapping[str, float]) -> None:
        raise OSError("disk full")

    table = {
        "tensorboard": ("x", lambda config: (broken, lambda: None)),
        "wandb": ("x", lambda config: (lambda step, figures: seen.append(figures["train/reward"]), lambda: None)),
    }
    with Trackers(["tensorboard", "wandb"], Config(), table=table) as chosen:
        for reward in (0.1, 0.2):
            chosen.update("train", 1, 2, {"reward": reward})
    assert seen == [0.1, 0.2]
    assert [record.getMessage() for record in caplog.records] == [
        "the tracker tensorboard failed and is left out from here on: disk full"
    ]

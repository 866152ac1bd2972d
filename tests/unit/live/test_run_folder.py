"""A run's folder is enough to run it again with the same settings."""

import json
from pathlib import Path

from practicum.config import load_config
from practicum.live.run_folder import describe


def test_the_recipe_that_is_written_resolves_to_the_same_configuration(tmp_path: Path) -> None:
    tasks = tmp_path / "jobs.py"
    tasks.write_text("TRAIN = []\n", encoding="utf-8")
    given = {"train.tasks": str(tasks), "train.options": '{"clip_high": 0.28}', "train.trackers": "tensorboard"}
    config = load_config(None, given, environ={})
    folder = tmp_path / "runs" / "run_1"
    describe(config, folder)
    assert load_config(folder / "recipe.toml", environ={}) == config
    assert (folder / "tasks.py").read_text(encoding="utf-8") == "TRAIN = []\n"
    versions = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
    assert versions["packages"]["torch"].startswith("2.") and versions["cores"]

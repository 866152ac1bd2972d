from __future__ import annotations

from pathlib import Path

import pytest

from practicum.environments.places import Allowed
from practicum.errors import UsageError


def test_a_file_of_the_folder_may_be_named_in_full_or_from_there(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "mine.py"
    file.write_text("")
    allowed = Allowed(folders=(tmp_path,))
    for place in (str(file), "in/mine.py", "in/../in/mine.py"):
        source, name = allowed.find(f"{place}:Own.Kind")
        assert (source.file, name) == (str(file.resolve()), "Own.Kind")


def test_nothing_outside_the_folder_may_be_named_not_even_by_a_link(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside.py", tmp_path / "folder"
    outside.write_text("")
    inside.mkdir()
    (inside / "link.py").symlink_to(outside)
    (inside / "sub.py").mkdir()
    allowed = Allowed(folders=(inside,))
    for place in (str(outside), "../outside.py", "link.py", "sub.py", "gone.py"):
        with pytest.raises(UsageError, match="in the folder of environments"):
            allowed.find(f"{place}:x")


def test_without_a_folder_no_file_may_be_named_and_of_modules_only_what_is_shipped() -> None:
    with pytest.raises(UsageError, match=r"rollouts\.environments_folder"):
        Allowed().find("/tmp/mine.py:x")
    for module in ("os", "practicum.environments.world"):
        with pytest.raises(UsageError, match="may not be named"):
            Allowed().find(f"{module}:system")
    assert Allowed().find("practicum.environments.shell:Shell")[0].module == "practicum.environments.shell"
    assert Allowed(modules=True).find("anything:Own")[0].module == "anything"


@pytest.mark.parametrize("environment", ["", ":", "mine.py", ":Own", "mine.py:"])
def test_what_names_nothing_is_refused(environment: str) -> None:
    with pytest.raises(UsageError, match="names no environment"):
        Allowed(modules=True).find(environment)

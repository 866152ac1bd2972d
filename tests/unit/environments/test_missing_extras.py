"""A connector without its library says which command installs it (checked in a bare interpreter)."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import sys
sys.modules[{library!r}] = None
from practicum.errors import MissingExtra
try:
    import practicum.environments.{module}
except MissingExtra as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("reasoning_gym", "reasoning_gym", "reasoning-gym"),
        ("textarena", "textarena", "textarena"),
        ("openenv", "websockets.sync.client", "openenv"),
    ],
)
def test_the_hint_is_the_command(module: str, library: str, extra: str) -> None:
    code = BLOCKED.format(module=module, library=library)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"pip install 'practicum[{extra}]'" in said.stdout, said.stderr


def test_environments_alone_import_no_library() -> None:
    code = (
        "import sys, practicum.environments; "
        "print({'reasoning_gym', 'textarena', 'websockets', 'verifiers', 'torch'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"

"""Hosts, and what the gateway's import pulls in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from practicum.errors import ConfigError
from practicum.gateway.server import check_host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_fine(host: str) -> None:
    check_host(host, allow_remote=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_w19_other_addresses_need_to_be_asked_for(host: str) -> None:
    with pytest.raises(ConfigError, match="allow-remote"):
        check_host(host, allow_remote=False)
    check_host(host, allow_remote=True)


def test_the_gateway_never_imports_torch() -> None:
    code = (
        "import sys, practicum.gateway, practicum.gateway.server, practicum.engines.scripted, practicum.renderers;"
        "print(sorted({'torch', 'transformers', 'peft', 'openai'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

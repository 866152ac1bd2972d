"""Hosts, and what the gateway's import pulls in."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from fastapi import FastAPI

from practicum.config import ServerConfig
from practicum.errors import ConfigError
from practicum.gateway.server import bind, check_host, serve, server


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


def test_a_taken_port_is_known_before_anything_listens_and_names_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port} of 127.0.0.1 is taken.*--port 0"):
            bind(ServerConfig(port=port))
    for sock in bind(ServerConfig(port=port)):
        sock.close()


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'192\.0\.2\.1' here.*--host"):
        bind(ServerConfig(host="192.0.2.1", port=0))


async def test_a_port_that_is_taken_between_binding_and_listening_is_named_too() -> None:
    (ours,) = bind(ServerConfig(port=0))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(ours.getsockname())
        other.listen()
        running = server(FastAPI(), ServerConfig(port=ours.getsockname()[1]))
        with pytest.raises(ConfigError, match="is taken"):
            await serve(running, (), [ours])
    ours.close()

"""Configuration: precedence, unknown keys with their nearest match, and where each value came from."""

import subprocess
import sys
from pathlib import Path

import pytest

from practicum.config import Config, config_file, flatten, known_keys, load_config, origins
from practicum.errors import ConfigError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "practicum.toml") -> Path:
    Path(name).write_text(text)
    return Path(name)


def test_defaults() -> None:
    config = load_config(environ={})
    assert config == Config()
    assert (config.server.host, config.server.port, config.server.max_body_bytes) == ("127.0.0.1", 8787, 33554432)
    assert config.model.id == "smollm2-135m-instruct"
    assert config.store_path == Path(".practicum/practicum.db")
    assert (config.policies_dir, config.runs_dir) == (Path(".practicum/policies"), Path(".practicum/runs"))


def test_overrides_beat_environment_beats_file_beats_defaults() -> None:
    write('home = "/file"\n[server]\nport = 1\nhost = "0.0.0.0"\nheader_timeout_s = 3\n')
    environ = {"PRACTICUM_SERVER__PORT": "2", "PRACTICUM_SERVER__HOST": "::1"}
    overrides = {"server.port": "3"}
    config = load_config(None, overrides, environ)
    assert (config.server.port, config.server.host, config.server.header_timeout_s) == (3, "::1", 3.0)
    assert config.home == Path("/file")
    found = origins(None, overrides, environ)
    assert found["server.port"] == "override"
    assert found["server.host"] == "env PRACTICUM_SERVER__HOST"
    assert found["server.header_timeout_s"] == "file practicum.toml"
    assert found["server.body_timeout_s"] == "default"
    assert set(found) == set(known_keys()) == set(flatten(config))


def test_the_working_folders_file_is_optional_and_a_named_one_is_not() -> None:
    load_config(environ={})
    with pytest.raises(ConfigError, match=r"missing\.toml cannot be read"):
        load_config(Path("missing.toml"), environ={})


def test_a_named_file_replaces_the_working_folders() -> None:
    write("[server]\nport = 1\n")
    other = write("[server]\nhost = 'localhost'\n", "other.toml")
    assert load_config(other, environ={}).server.port == 8787


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\nprot = 1\n", r"'server\.prot' in practicum\.toml is not known.* server\.port\?"),
        ("[sever]\nport = 1\n", r"\[sever\] is not known.* server\?"),
        ("port = 1\n", r"'port' .*not known.* server\.port\?"),
        ("server = 1\n", "'server'"),
        ("[server.port]\nx = 1\n", r"server\.port"),
        ("[server\n", "is not TOML"),
    ],
)
def test_a_bad_file_names_the_way_out(text: str, says: str) -> None:
    write(text)
    with pytest.raises(ConfigError, match=says):
        load_config(environ={})


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("PRACTICUM_SEVER__PORT", "PRACTICUM_SERVER__PORT"),
        ("PRACTICUM_PORT", "PRACTICUM_SERVER__PORT"),
        ("PRACTICUM_HOM", "PRACTICUM_HOME"),
    ],
)
def test_an_unknown_variable_names_its_nearest_match(variable: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable} is not known.* {nearest}"):
        load_config(environ={variable: "1"})


def test_an_unknown_override_names_its_nearest_match() -> None:
    with pytest.raises(ConfigError, match=r"server\.port\?") as caught:
        load_config(overrides={"servr.prot": "1"}, environ={})
    assert caught.value.code == "unknown_key"


def test_the_clients_variables_and_other_programs_are_left_alone() -> None:
    load_config(environ={"PRACTICUM_API_KEY": "pk_x", "PRACTICUM_BASE_URL": "http://x", "PATH": "/bin"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.port", "x"),
        ("server.port", "70000"),
        ("server.body_timeout_s", "nan"),
        ("server.body_timeout_s", "0"),
        ("model.context_length", "-1"),
        ("gateway.model_name", ""),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_origin(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} = '{value}' \(from override\) does not fit") as caught:
        load_config(overrides={key: value}, environ={})
    assert caught.value.param == key
    assert caught.value.hint


def test_text_is_read_by_the_fields_type() -> None:
    config = load_config(
        environ={"PRACTICUM_GATEWAY__ALIASES": "gpt-4o, claude", "PRACTICUM_MODEL__CACHE_DIR": "none"},
        overrides={"model.context_length": "2048", "home": "~/x"},
    )
    assert config.gateway.aliases == ["gpt-4o", "claude"]
    assert config.model.cache_dir is None
    assert config.model.context_length == 2048
    assert config.home == Path.home() / "x"
    assert load_config(overrides={"gateway.aliases": '["a,b"]'}, environ={}).gateway.aliases == ["a,b"]
    assert load_config(overrides={"gateway.aliases": ""}, environ={}).gateway.aliases == []


def test_the_cache_follows_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert load_config(environ={}).model.cache_path == Path("/cache/practicum")
    assert load_config(overrides={"model.cache_dir": "/mine"}, environ={}).model.cache_path == Path("/mine")


def test_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().server.port = 1  # type: ignore[misc]


def test_importing_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, practicum.config; print(sorted({'torch', 'transformers', 'fastapi', 'apsw'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_the_file_that_is_read_is_known(tmp_path: Path) -> None:
    assert config_file() is None
    named = tmp_path / "other.toml"
    assert config_file(named) == named
    Path("practicum.toml").write_text("")
    assert config_file() == Path("practicum.toml")

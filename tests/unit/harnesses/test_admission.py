"""What a task is refused for before it is queued, by the adapters that ship, and what it is not refused for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from practicum.capture.stalls import Stalls
from practicum.errors import NotFound, RequestError
from practicum.feedback.graders import GraderSettings, graders
from practicum.harnesses.admission import check_task
from practicum.harnesses.attempt import Means
from practicum.harnesses.harness import Harness, HarnessJob
from practicum.harnesses.process import ProcessHarness
from practicum.harnesses.registry import ADAPTERS
from practicum.sandboxes.choose import provider
from practicum.sandboxes.local import LocalProvider
from practicum.sandboxes.sandbox import Limits, SandboxProvider
from practicum.types.calls import ModelCall
from practicum.types.rollouts import Task


async def no_calls(session_id: str) -> Sequence[ModelCall]:
    return []


def means(sandboxes: SandboxProvider | None = None, harnesses: Mapping[str, Harness] | None = None) -> Means:
    return Means(
        harnesses=harnesses or {name: adapter() for name, adapter in ADAPTERS.items()},
        sandboxes=sandboxes or LocalProvider(),
        graders=graders(GraderSettings()),
        stalls=Stalls(),
        limits=Limits(),
        calls=no_calls,
    )


def task(harness: str = "command", **more: Any) -> Task:
    options = {"command": ["sh", "-c", "true"]} if harness == "command" else {}
    return Task(**{"task_id": "t", "instructions": ("Go.",), "harness": harness, "options": options, **more})


def refusal(asked: Task, of: Means | None = None, **how: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_task(asked, of or means(), **how)
    return caught.value


@pytest.mark.parametrize(
    ("harness", "options", "param"),
    [
        ("command", {}, "options.command"),
        ("command", {"command": []}, "options.command"),
        ("command", {"command": "run me"}, "options.command"),
        ("command", {"command": ["sh"], "comand": ["sh"]}, "options.comand"),
        ("command", {"command": ["sh"], "env": {"A": 1}}, "options.env.A"),
        ("python", {}, "options"),
        ("python", {"function": "no colon"}, "options.function"),
        ("claude-code", {"model": "x"}, "options.model"),
        ("pi", {"api": "smoke-signals"}, "options.api"),
    ],
)
def test_an_option_that_does_not_fit_is_named(harness: str, options: dict[str, Any], param: str) -> None:
    found = refusal(task(harness, options=options))
    assert found.param == param and found.message and found.hint


def test_a_program_that_no_sandbox_would_find_is_named() -> None:
    for missing in ("no-such-agent", "/no/such/agent"):
        found = refusal(task(options={"command": [missing]}))
        assert f"`{missing}` is not installed" in found.message and found.param == "options"
    found = refusal(task("langgraph", options={"function": "a:b", "python": "/no/such/python"}))
    assert "langgraph, for `/no/such/python`" in found.message and "pip install langgraph" in found.hint
    for kind in ("auto", "bubblewrap"):
        refusal(task(options={"command": ["no-such-agent"]}), means(provider(kind)))


@pytest.mark.parametrize(
    "asked",
    [
        task(),
        task(options={"command": ["./agent.sh"]}, files={"agent.sh": "x"}),
        task(options={"command": ["no-such-agent"]}, env={"PATH": "/opt/agent/bin"}),
        task(options={"command": ["no-such-agent"], "env": {"PATH": "/opt/agent/bin"}}),
        task("python", options={"script": ["agent.py"], "python": sys.executable}),
        task(files={"a/b": "x", "a/c": "x", "ab": "x"}),
    ],
)
def test_what_may_work_is_not_refused(asked: Task) -> None:
    check_task(asked, means())


def test_what_an_own_adapter_makes_of_options_is_the_tasks_fault() -> None:
    class Own(ProcessHarness):
        name, install = "own", "pip install own"

        def command(self, job: HarnessJob) -> Sequence[str]:
            return ["sh", "-c", job.options["line"]]

    own = means(harnesses={"own": Own()})
    check_task(task("own", options={"line": "true"}), own)
    found = refusal(task("own"), own)
    assert found.param == "options" and "'own' cannot be run with these options: KeyError: 'line'" in found.message


def test_an_adapter_that_is_no_process_is_left_alone() -> None:
    class Remote:
        name = "remote"
        submit = status = collect = None

    check_task(task("remote", options={"whatever": 1}), means(harnesses={"remote": Remote()}))  # type: ignore[dict-item]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "", ".", "a/../../x", "a\0b", "/app"])
def test_a_path_that_leads_out_of_the_working_folder_is_named(path: str) -> None:
    found = refusal(task(files={path: "x"}, workdir="/app"), means(provider("bubblewrap")))
    assert found.param == f"files.{path}"


def test_a_path_below_the_working_folder_may_be_absolute() -> None:
    check_task(task(files={"/app/x": "x", "y": "y"}, workdir="/app"), means(provider("bubblewrap")))


def test_a_file_that_is_a_folder_too_is_named() -> None:
    assert refusal(task(files={"a/b": "x", "a": "y"})).param == "files.a"


def test_a_working_folder_that_cannot_be_there_is_named() -> None:
    for workdir in ("app", "/", "//"):
        assert refusal(task(workdir=workdir), means(provider("bubblewrap"))).param == "workdir"
    found = refusal(task(workdir="/app"))
    assert found.param == "workdir" and "bubblewrap" in found.hint


def test_a_model_that_the_gateway_would_refuse_is_named() -> None:
    def only_ours(name: str) -> None:
        if name != "practicum":
            raise NotFound(f"There is no model {name!r} here.", hint="Models are `practicum`.")

    check_task(task(), means(), check_model=only_ours)
    check_task(task(model="practicum"), means(), check_model=only_ours)
    found = refusal(task(model="gpt-9"), check_model=only_ours)
    assert found.param == "model" and "'gpt-9'" in found.message and "`practicum`" in found.hint


def test_a_graders_option_that_does_not_fit_is_named() -> None:
    assert refusal(task(graders={"exit_status": {"comand": ["true"]}})).param == "graders.exit_status"

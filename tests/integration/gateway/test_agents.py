"""Real agent packages against the endpoint, and what becomes of their sessions: one append-only chain each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.gateway.thinking import ThinkingRenderer

from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step, Turn, play
from practicum.episodes.rows import training_rows
from practicum.renderers import ByteTokenizer, Renderer
from practicum.types.calls import ModelCall

SCRIPT = Path(__file__).parent / "mini_swe_agent_script.json"
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {
    "key": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["key"]}}}  # fmt: skip


def assert_one_chain(calls: list[ModelCall], renderer: Renderer) -> None:
    """The session's ids are the concatenation of what was served, and every sampled token is trained once."""
    made = training_rows(calls)
    assert len(made.episodes) == len(made.rows) == 1, [call.fork_reason for call in calls]
    (row,), served = made.rows, ()
    for call in calls:
        assert call.prompt_ids[: len(served)] == served
        served = call.prompt_ids + call.completion_ids
    assert row.prompt_ids + row.completion_ids == served
    trained = tuple(token for token, own in zip(row.completion_ids, row.mask, strict=True) if own)
    assert trained == tuple(token for call in calls for token in call.completion_ids)
    assert [call.fork_reason for call in calls] == ["new_conversation"] + [None] * (len(calls) - 1)
    assert len({call.episode_id for call in calls}) == len({call.session_id for call in calls}) == 1


def two_tools_then_text(turn: Turn) -> Step:
    """Two tool turns, one of them with arguments written in an odd way, then an answer."""
    if turn.assistant_turns == 0:
        return Step(content="Looking.", tool_calls=[ScriptedCall(name="look_up", arguments={"limit": 3, "key": "ü"})])
    if turn.assistant_turns == 1:
        return Step(tool_calls=[ScriptedCall(name="look_up", arguments={"key": "b"})])
    return Step(content=f"Done after: {turn.messages[-1][1][:60]}")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pydantic_ai_session_is_one_chain(start: Any, stream: bool) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    up = start(ScriptedSampler(two_tools_then_text))
    provider = OpenAIProvider(base_url=f"{up.url}/v1", api_key=up.key)
    agent = Agent(OpenAIChatModel("practicum", provider=provider), system_prompt="Be brief.")
    asked: list[str] = []

    @agent.tool_plain
    def look_up(key: str, limit: int = 1) -> str:
        """Look something up."""
        asked.append(key)
        return f"{key} is {limit}"

    async def watch(context: Any, events: Any) -> None:
        async for _ in events:
            pass

    said = (await agent.run("What are they?", event_stream_handler=watch if stream else None)).output
    assert asked == ["ü", "b"] and said.startswith("Done after: <tool_response>")
    calls = up.calls()
    assert len(calls) == 3
    assert_one_chain(calls, up.renderer)
    rendered = up.renderer.tokenizer.decode(calls[2].prompt_ids)
    assert "ü is 3" in rendered and "b is 1" in rendered


async def test_a_second_run_that_brings_the_history_goes_on_with_the_chain(start: Any) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    up = start(ScriptedSampler(play([Step(content="One."), Step(content="Two.")])))
    provider = OpenAIProvider(base_url=f"{up.url}/v1", api_key=up.key)
    agent = Agent(OpenAIChatModel("practicum", provider=provider))
    first = await agent.run("Count.")
    await agent.run("Go on.", message_history=first.all_messages())
    assert_one_chain(up.calls(), up.renderer)


PYDANTIC = ("chat", "responses", "anthropic", "gemini")


def pydantic_model(up: Any, api: str) -> Any:
    """The real harness's model for one API, asking for thinking where that is the caller's choice."""
    from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
    from pydantic_ai.models.google import GoogleModel, GoogleModelSettings
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.google import GoogleProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if api == "anthropic":
        thinking = AnthropicModelSettings(anthropic_thinking={"type": "enabled", "budget_tokens": 1024})
        return AnthropicModel(
            "practicum", provider=AnthropicProvider(base_url=up.url, api_key=up.key), settings=thinking
        )
    if api == "gemini":
        config = GoogleModelSettings(google_thinking_config={"include_thoughts": True})
        return GoogleModel("practicum", provider=GoogleProvider(base_url=up.url, api_key=up.key), settings=config)
    model = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return model("practicum", provider=OpenAIProvider(base_url=f"{up.url}/v1", api_key=up.key))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", PYDANTIC)
async def test_w9_pydantic_ai_with_a_model_that_thinks_is_one_chain(start: Any, api: str, stream: bool) -> None:
    from pydantic_ai import Agent

    def thinks(turn: Turn) -> Step:
        step = two_tools_then_text(turn)
        return step.model_copy(update={"content": f"<think>thought {turn.assistant_turns}</think>{step.content}"})

    up = start(ScriptedSampler(thinks), renderer=ThinkingRenderer())
    agent = Agent(pydantic_model(up, api), system_prompt="Be brief.")

    @agent.tool_plain
    def look_up(key: str, limit: int = 1) -> str:
        """Look something up."""
        return f"{key} is {limit}"

    async def watch(context: Any, events: Any) -> None:
        async for _ in events:
            pass

    said = await agent.run("What are they?", event_stream_handler=watch if stream else None)
    assert said.output.startswith("Done after: <tool_response>")
    calls = up.calls()
    assert len(calls) == 3
    assert_one_chain(calls, up.renderer)
    rendered = up.renderer.tokenizer.decode(calls[2].prompt_ids)
    assert "<think>thought 0</think>" in rendered and "<tool_response>ü is 3</tool_response>" in rendered


def test_mini_swe_agent_finishes_its_task(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed")
    for name, value in {
        "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path), "NO_PROXY": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    up = start(ScriptedSampler.from_spec(f"scripted:{SCRIPT}"))
    model = LitellmModel(
        model_name="openai/practicum",
        model_kwargs={"api_base": f"{up.url}/s/mini-1/v1", "api_key": up.key, "drop_params": True},
        cost_tracking="ignore_errors",
    )
    agent = DefaultAgent(
        model,
        LocalEnvironment(cwd=str(tmp_path)),
        system_template="You can use a shell.",
        instance_template="{{task}}",
    )
    outcome = agent.run("Create hello.txt containing hi.")
    assert outcome["exit_status"] == "Submitted"
    assert (tmp_path / "hello.txt").read_text() == "hi\n"
    assert_one_chain(up.calls("mini-1"), up.renderer)


def replayed(message: Any, arguments: str, **content: Any) -> dict[str, Any]:
    (call,) = message.tool_calls
    function = {"name": call.function.name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "other", "type": "function", "function": function}], **content}


@pytest.mark.parametrize(
    "content", [{}, {"content": None}, {"content": ""}, {"content": [], "reasoning_content": "hm"}]
)
def test_e3_an_answer_replayed_in_any_form_goes_on_with_the_episode(start: Any, content: dict[str, Any]) -> None:
    silent = Step(tool_calls=[ScriptedCall(name="look_up", arguments={"limit": 1, "key": "é"})])
    up = start(ScriptedSampler(play([silent, Step(content="ok")])))
    client, ask = up.openai(), [{"role": "user", "content": "Go."}]
    message = client.chat.completions.create(model="practicum", messages=ask, tools=[TOOL]).choices[0].message
    other_form = json.dumps({"key": "é", "limit": 1.0}, indent=4)
    history = [
        *ask,
        replayed(message, other_form, **content),
        {"role": "tool", "content": "42", "tool_call_id": "other"},
    ]
    client.chat.completions.create(model="practicum", messages=history, tools=[TOOL])
    assert_one_chain(up.calls(), up.renderer)


def test_e2_reordered_tools_go_on_and_changed_tools_fork(up: Any) -> None:
    client, ask = up.openai(prefix="/s/s1"), [{"role": "user", "content": "Go."}]
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    first = client.chat.completions.create(model="practicum", messages=ask, tools=[TOOL, other]).choices[0].message
    history = [*ask, first.model_dump(exclude_none=True), {"role": "tool", "content": "42", "tool_call_id": "x"}]
    written = json.loads(json.dumps(TOOL))
    written["function"] = dict(reversed(written["function"].items())) | {"strict": False, "description": ""}
    client.chat.completions.create(model="practicum", messages=history, tools=[other, written])
    client.chat.completions.create(model="practicum", messages=history, tools=[TOOL])
    first_call, second, third = up.calls("s1")
    assert second.parent_call_id == first_call.call_id and second.fork_reason is None
    assert third.parent_call_id is None and third.fork_reason == "tools_changed"
    assert len(training_rows(up.calls("s1")).episodes) == 2


def test_a_rewritten_answer_forks_and_nothing_is_lost(up: Any) -> None:
    client, ask = up.openai(prefix="/s/s1"), [{"role": "user", "content": "Go."}]
    client.chat.completions.create(model="practicum", messages=ask)
    history = [*ask, {"role": "assistant", "content": "What I would have said."}, {"role": "user", "content": "And?"}]
    client.chat.completions.create(model="practicum", messages=history)
    _, second = up.calls("s1")
    assert second.fork_reason == "assistant_rewritten" and second.parent_call_id is None
    assert len(training_rows(up.calls("s1")).rows) == 2


def test_e1_a_template_that_drops_old_text_changes_nothing_that_was_served(start: Any) -> None:
    """The template keeps only what stands behind `</think>` in the history; the served ids are used all the same."""
    stripping = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
    )
    steps = [Step(content="hm, let me see</think>Yes."), Step(content="ok</think>Bye.")]
    up = start(ScriptedSampler(play(steps)), renderer=Renderer(ByteTokenizer(), stripping))
    client, ask = up.openai(), [{"role": "user", "content": "Go."}]
    first = client.chat.completions.create(model="practicum", messages=ask).choices[0].message.content
    client.chat.completions.create(
        model="practicum", messages=[*ask, {"role": "assistant", "content": first}, {"role": "user", "content": "b"}]
    )
    assert_one_chain(up.calls(), up.renderer)
    assert "let me see" in up.renderer.tokenizer.decode(up.calls()[1].prompt_ids)


def test_e9_without_headers_sessions_are_inferred_and_shown(up: Any) -> None:
    client = up.openai()
    ask = [{"role": "user", "content": "Go."}]
    first = client.chat.completions.with_raw_response.create(model="practicum", messages=ask)
    said = first.parse().choices[0].message.content
    follow = [*ask, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    second = client.chat.completions.with_raw_response.create(model="practicum", messages=follow)
    other = client.chat.completions.with_raw_response.create(model="practicum", messages=ask)
    shown = [
        (r.headers["x-practicum-session-id"], r.headers["x-practicum-session-source"]) for r in (first, second, other)
    ]
    assert shown[0][0] == shown[1][0] != shown[2][0]
    assert [source for _, source in shown] == ["new", "inferred", "new"]
    overridden = client.chat.completions.with_raw_response.create(
        model="practicum", messages=follow, extra_headers={"x-practicum-session": "mine"}
    )
    assert overridden.headers["x-practicum-session-id"] == "mine"
    served = up.calls()[0].prompt_ids + up.calls()[0].completion_ids
    (moved,) = up.calls("mine")
    assert moved.parent_call_id and moved.prompt_ids[: len(served)] == served, "ids are reused across sessions"


def test_sessions_and_histories_are_one_principals_own(up: Any) -> None:
    from practicum.store import create_key

    ben = create_key(up.store, "ben", {"sample"})
    ask = [{"role": "user", "content": "Go."}]
    said = up.openai(prefix="/s/shared").chat.completions.create(model="practicum", messages=ask).choices[0].message
    follow = [*ask, {"role": "assistant", "content": said.content}, {"role": "user", "content": "And?"}]
    theirs = up.openai(ben, prefix="/s/shared").chat.completions.with_raw_response.create(
        model="practicum", messages=follow
    )
    assert theirs.headers["x-practicum-session-id"] == "ben/shared"
    (call,) = up.calls("ben/shared")
    assert call.parent_call_id is None and call.fork_reason == "assistant_not_served"
    assert {one.principal for one in up.calls("shared")} == {"helpdesk"}


def test_w6_calls_of_a_history_that_was_not_served_are_in_the_ids(up: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"key": "zebra"}'}}
    history = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "c", "content": "striped"}]  # fmt: skip
    up.openai().chat.completions.create(model="practicum", messages=history, tools=[TOOL])
    rendered = up.renderer.tokenizer.decode(up.calls()[0].prompt_ids)
    assert '{"name": "look_up", "arguments": {"key": "zebra"}}' in rendered and "striped" in rendered


def test_a_chain_goes_on_over_an_answer_that_length_cut(start: Any) -> None:
    up = start(ScriptedSampler(play([Step(content="x" * 50), Step(content="ok")])))
    client, ask = up.openai(), [{"role": "user", "content": "Go."}]
    cut = client.chat.completions.create(model="practicum", messages=ask, max_tokens=10).choices[0]
    follow = [*ask, {"role": "assistant", "content": cut.message.content}, {"role": "user", "content": "b"}]
    client.chat.completions.create(model="practicum", messages=follow)
    assert cut.finish_reason == "length"
    assert_one_chain(up.calls(), up.renderer)
    text = up.renderer.tokenizer.decode(up.calls()[1].prompt_ids)
    assert "x" * 10 + "<|im_end|>\n<|im_start|>user\nb" in text

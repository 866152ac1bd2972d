"""A sampler without a model, for wiring up a harness and for tests: it answers from the prompt alone.

It reads the conversation out of the prompt's ids (ChatML over bytes), asks a policy function for the next turn, and
streams that turn token by token. The policy is deterministic, so each of its tokens has probability 1 and the logprob
0.0 is true here. Versions differ only in what they are called, and in what a policy function makes of the number.

`scripted` calls one of the request's own tools, then answers in words. `scripted:FILE` plays a list of steps, chosen by
how many assistant turns the prompt has. It must not import torch.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from practicum.errors import ConfigError, EngineError, NotFound
from practicum.renderers.tokenizer import ByteTokenizer
from practicum.types.tokens import FinishReason, SampleRequest, TokenChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a policy function sees: the version asked, `(role, text)` of each message, and the tools on offer."""

    version: int
    messages: tuple[tuple[str, str], ...]
    tools: tuple[dict[str, Any], ...]

    @property
    def assistant_turns(self) -> int:
        """How many answers the conversation holds."""
        return sum(role == "assistant" for role, _ in self.messages)

    @property
    def after_tool_result(self) -> bool:
        """Whether the last message is a tool's result."""
        return bool(self.messages) and self.messages[-1][1].startswith("<tool_response>")


class ScriptedCall(BaseModel):
    """A tool call in a script."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(min_length=1)
    arguments: dict[str, Any] = {}


class Step(BaseModel):
    """One turn of a script: text, calls, and seconds to wait before each token (the sampler's own where absent).

    `fail` makes the engine fail with this message once the content is out.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    content: str = ""
    tool_calls: list[ScriptedCall] = []
    delay_s: float | None = Field(default=None, ge=0)
    fail: str | None = None


_MOST_ITEMS = 4

Policy = Callable[[Turn], Step]


class ScriptedSampler:
    """Implements the Sampler seam over `ByteTokenizer`.

    Args:
        policy: decides each turn; `use_own_tools` by default.
        context_length: most tokens a prompt and its completion may have together.
        per_token_delay_s: seconds before each token.
    """

    def __init__(
        self, policy: Policy | None = None, *, context_length: int = 32_768, per_token_delay_s: float = 0.0
    ) -> None:
        self.tokenizer = ByteTokenizer()
        self._policy = policy or use_own_tools
        self._context_length = context_length
        self._delay_s = per_token_delay_s
        self._versions: dict[int, str] = {0: ""}
        self.running = 0

    @classmethod
    def from_spec(cls, spec: str, **options: Any) -> ScriptedSampler:
        """`scripted`, or `scripted:FILE` with a JSON list of steps. Raises ConfigError naming the step at fault."""
        kind, _, file = spec.partition(":")
        if kind != "scripted":
            raise ConfigError(f"{spec!r} names no script.", hint="Use `scripted` or `scripted:FILE`.")
        return cls(play(read_script(Path(file))) if file else None, **options)

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        return self._context_length

    async def load(self, version: int, adapter_path: Path | None, digest: str) -> None:
        """Make a version servable. The adapter is not read: there is no model that it could change."""
        self._versions[version] = digest

    async def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        """Stream the next turn, one token a chunk. Raises NotFound, and EngineError where the script says so."""
        if request.version not in self._versions:
            raise NotFound(f"Version {request.version} is not loaded.")
        step = self._step(request.prompt_ids, request.version)
        ids = self._ids(step)
        whole = len(ids) <= request.params.max_tokens
        delay_s = self._delay_s if step.delay_s is None else step.delay_s
        self.running += 1
        try:
            for number, token in enumerate(ids[: request.params.max_tokens], start=1):
                await asyncio.sleep(delay_s)
                if step.fail is not None and token == ByteTokenizer.END:
                    raise EngineError(step.fail)
                last = number == len(ids) if whole else number == request.params.max_tokens
                reason: FinishReason | None = None if not last else "stop" if whole else "length"
                yield TokenChunk(
                    ids=(token,), logprobs=(0.0,), sampled_logprobs=(0.0,), version=request.version,
                    finish_reason=reason,
                )  # fmt: skip
        finally:
            self.running -= 1

    async def logprobs(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, version: int, temperature: float = 1.0
    ) -> list[float]:
        """[T]: 0.0 as long as the completion is what the script says, minus infinity from where it is not."""
        expected = self._ids(self._step(prompt_ids, version))
        out, follows = [], True
        for index, token in enumerate(completion_ids):
            follows = follows and index < len(expected) and expected[index] == token
            out.append(0.0 if follows else -math.inf)
        return out

    def _step(self, prompt_ids: Sequence[int], version: int) -> Step:
        messages = self._messages(prompt_ids)
        return self._policy(Turn(version=version, messages=messages, tools=_tools_in(messages)))

    def _messages(self, prompt_ids: Sequence[int]) -> tuple[tuple[str, str], ...]:
        turns: list[list[int]] = []
        for token in prompt_ids:
            if token == ByteTokenizer.START:
                turns.append([])
            elif turns and token != ByteTokenizer.END:
                turns[-1].append(token)
        texts = [self.tokenizer.decode(turn).partition("\n") for turn in turns]
        return tuple((role, text.strip("\n")) for role, _, text in texts[:-1])

    def _ids(self, step: Step) -> list[int]:
        blocks = [step.content] if step.content else []
        for call in step.tool_calls:
            written = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
            blocks.append(f"<tool_call>\n{written}\n</tool_call>")
        return [*self.tokenizer.encode_plain("\n".join(blocks)), ByteTokenizer.END]


def use_own_tools(turn: Turn) -> Step:
    """Call one of the request's own tools, then say what came of it. A shell is preferred and only echoes."""
    if turn.after_tool_result:
        result = turn.messages[-1][1].removeprefix("<tool_response>").removesuffix("</tool_response>").strip()
        return Step(content=f"The tool answered: {result[:200]}")
    if turn.tools:
        tool = next((tool for tool in turn.tools if _shell_key(tool)), turn.tools[0])
        name, schema = str(tool["name"]), tool.get("parameters") or {}
        calls = [ScriptedCall(name=name, arguments=_example_arguments(schema, _shell_key(tool)))]
        return Step(content=f"I will use {name}.", tool_calls=calls)
    asked = next((text for role, text in reversed(turn.messages) if role == "user"), "")
    return Step(content=f"This is the scripted policy, version {turn.version}. You wrote: {asked[:200]}")


def play(steps: Sequence[Step]) -> Policy:
    """The step for the number of answers so far; behind the last one, a closing word."""

    def policy(turn: Turn) -> Step:
        if turn.assistant_turns < len(steps):
            return steps[turn.assistant_turns]
        return Step(content=f"The script has {len(steps)} steps and all are played.")

    return policy


def letters(count: int) -> Policy:
    """`count` times the version's own letter (a for 0, b for 1, …): shows which version sampled each token."""
    return lambda turn: Step(content=chr(ord("a") + turn.version % 26) * count)


def read_script(path: Path) -> list[Step]:
    """Steps from a JSON file. Raises ConfigError naming the file, the step and the field."""
    try:
        return TypeAdapter(list[Step]).validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The script {path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"The script {path} is wrong{f' at step {where}' if where else ''}: {first['msg']}.",
            hint='It is a JSON list of steps: {"content": "text", "tool_calls": [{"name": "…", "arguments": {}}]}.',
        ) from error


def _tools_in(messages: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], ...]:
    if not messages or messages[0][0] != "system":
        return ()
    block = messages[0][1].rpartition("<tools>\n")[2].partition("\n</tools>")[0]
    tools = []
    for line in block.splitlines():
        try:
            tool = json.loads(line)
        except ValueError:
            continue
        if isinstance(tool, dict) and tool.get("name") and isinstance(tool["name"], str):
            tools.append(tool if _is_schema(tool.get("parameters")) else {**tool, "parameters": {}})
    return tuple(tools)


def _is_schema(value: Any) -> bool:
    """Whether examples can be made of it: callers may send anything as a schema, and large ones of a few bytes."""
    if not isinstance(value, dict):
        return False
    lists = [value[key] for key in ("required", "enum", "anyOf", "oneOf") if value.get(key) is not None]
    properties, least = value.get("properties") or {}, value.get("minItems", 0)
    if not isinstance(properties, dict) or not all(isinstance(one, list) for one in lists):
        return False
    inner = [*properties.values(), *(value.get("anyOf") or []), *(value.get("oneOf") or [])]
    inner += [value["items"]] if value.get("items") else []
    return isinstance(least, int) and least <= _MOST_ITEMS and all(_is_schema(one) for one in inner)


def _shell_key(tool: dict[str, Any]) -> str | None:
    properties = (tool.get("parameters") or {}).get("properties") or {}
    return next((key for key in ("command", "cmd", "script") if key in properties), None)


def _example_arguments(schema: dict[str, Any], shell_key: str | None) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    wanted = [key for key in properties if key in (schema.get("required") or []) or key == shell_key]
    arguments = {key: _example(properties[key], key) for key in wanted}
    if shell_key:
        as_list = properties[shell_key].get("type") == "array"
        arguments[shell_key] = ["echo", "scripted"] if as_list else "echo scripted"
    return arguments


def _example(schema: dict[str, Any], key: str) -> Any:
    for given in ("const", "default"):
        if given in schema:
            return schema[given]
    if schema.get("enum"):
        return schema["enum"][0]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return _example(options[0], key)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        return _example_arguments(schema, None)
    if kind == "array":
        return [_example(schema.get("items") or {}, key)] * int(schema.get("minItems", 0))
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"boolean": True, "null": None}.get(str(kind), key)

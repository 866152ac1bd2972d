"""A sampler without a model, for wiring up a harness and for tests: it answers from the prompt alone.

It reads the conversation out of the prompt's ids (ChatML over bytes), asks a policy function for the next turn, and
streams that turn token by token. The policy is deterministic, so each of its tokens has probability 1 and the logprob
0.0 is true here. Versions differ only in what they are called, and in what a policy function makes of the number.

`scripted` calls one of the request's own tools, then answers in words. `scripted:write:PATH=TEXT` writes a file with
them. `scripted:FILE` plays a list of steps, chosen by how many assistant turns the prompt has.

Under a constraint it says what the script says if that is a match; else the script's calls alone; else an example of
the schema; else a match that ends what it can at once. Where it does not say what the script says, the raw logprobs are
not known: they are the script's own, and it gives such tokens no probability.

It must not import torch.
"""

from __future__ import annotations

import asyncio
import json
import math
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from practicum.engines.constraints import Constraints, Matcher
from practicum.errors import ConfigError, EngineError, NotFound
from practicum.renderers.tokenizer import ByteTokenizer
from practicum.types.tokens import Constraint, FinishReason, SampleRequest, TokenChunk

# What a forced answer goes on with, best first: what ends a string, plain letters (but an exponent would never end),
# what ends anything else. What was just opened is closed before it holds anything.
_PREFERRED = tuple(dict.fromkeys([*b'"abcdfghijklmnopqrstuvwxyz}]{[,:0123456789', *range(33, 256), *range(33)]))
_OPENED = (*b"}]", *_PREFERRED)


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
        """Whether a tool's result has come in since the last answer, whatever the harness added behind it."""
        said = [index for index, (role, _) in enumerate(self.messages) if role == "assistant"]
        since = self.messages[said[-1] + 1 :] if said else ()
        return any(text.startswith("<tool_response>") for _, text in since)


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
# How mini-swe-agent and those like it have a task ended: by a command, named in the prompt.
_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


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
        self._constraints = Constraints(self.tokenizer, self.tokenizer.vocab_size)
        self._versions: dict[int, str] = {0: ""}
        self.running = 0

    @classmethod
    def from_spec(cls, spec: str, **options: Any) -> ScriptedSampler:
        """`scripted`, `scripted:write:PATH=TEXT`, or `scripted:FILE` with a JSON list of steps.

        Raises ConfigError naming what is wrong, the step of a file included.
        """
        kind, _, rest = spec.partition(":")
        if kind != "scripted":
            raise ConfigError(f"{spec!r} names no script.", hint="Use `scripted` or `scripted:FILE`.")
        verb, found, task = rest.partition(":")
        if found and verb == "write":
            path, found, text = task.partition("=")
            if not path or not found:
                raise ConfigError(f"{spec!r} does not say what to write.", hint="Use `scripted:write:PATH=TEXT`.")
            return cls(write_file(path, text), **options)
        if found and not Path(rest).exists():  # a file's name may hold a colon; a misspelt verb is none
            raise ConfigError(
                f"{spec!r}: there is no kind of script {verb!r}, and no file {rest!r}.",
                hint="Use `scripted:write:PATH=TEXT`, or `scripted:FILE`.",
            )
        return cls(play(read_script(Path(rest))) if rest else None, **options)

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        return self._context_length

    async def load(self, version: int, adapter_path: Path | None, digest: str) -> None:
        """Make a version servable. The adapter is not read: there is no model that it could change."""
        self._versions[version] = digest

    async def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        """Stream the next turn, one token a chunk.

        Raises: NotFound; RequestError for a constraint that cannot be met, MissingExtra; EngineError where the script
        says so.
        """
        if request.version not in self._versions:
            raise NotFound(f"Version {request.version} is not loaded.")
        step = self._step(request.prompt_ids, request.version)
        script = ids = self._ids(step)
        if (constraint := request.params.constraint) is not None:
            await self._constraints.prepared(constraint, request.stop_ids)
            ids = self._match(step, constraint, request)
        logprob = 0.0 if ids == script else None
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
                    ids=(token,), logprobs=(logprob,), sampled_logprobs=(0.0,), version=request.version,
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

    def _match(self, step: Step, constraint: Constraint, request: SampleRequest) -> list[int]:
        """Ids of an answer that meets the constraint, as near to the script as can be."""
        wanted = [self._ids(step), self._ids(Step(tool_calls=step.tool_calls))]
        if constraint.kind == "json_schema":
            example = json.dumps(_example(json.loads(constraint.text), "text"), ensure_ascii=False)
            wanted.append(self._ids(Step(content=example)))
        for ids in wanted:
            if self._constraints.matcher(constraint, request.stop_ids).matches(ids[:-1]):
                return ids
        return _least(self._constraints.matcher(constraint, request.stop_ids), request.params.max_tokens)

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


def _least(matcher: Matcher, limit: int) -> list[int]:
    """The match that closes what it can as soon as it can, ended; cut where it is longer than `limit`."""
    ids: list[int] = []
    while len(ids) < limit and not matcher.may_end:
        allowed = matcher.allowed()
        order = _OPENED if ids and ids[-1] in b"{[" else _PREFERRED
        ids.append(next(token for token in order if allowed[token]))
        matcher.advance(ids[-1])
    return [*ids, ByteTokenizer.END]


def use_own_tools(turn: Turn) -> Step:
    """Call one of the request's own tools, then say what came of it. A shell is preferred and only echoes."""
    if turn.after_tool_result:
        result = turn.messages[-1][1].removeprefix("<tool_response>").removesuffix("</tool_response>").strip()
        return Step(content=f"The tool answered: {result[:200]}")
    if turn.tools:
        tool = next((tool for tool in turn.tools if _shell_key(tool)), turn.tools[0])
        name, schema = str(tool["name"]), tool.get("parameters") or {}
        shell = _shell_key(tool) is not None
        arguments = _shell_arguments(tool, "echo scripted") if shell else _example_arguments(schema, None)
        calls = [ScriptedCall(name=name, arguments=arguments)]
        return Step(content=f"I will use {name}.", tool_calls=calls)
    asked = next((text for role, text in reversed(turn.messages) if role == "user"), "")
    return Step(content=f"This is the scripted policy, version {turn.version}. You wrote: {asked[:200]}")


def write_file(path: str, text: str) -> Policy:
    """Write `text` and a line end to a file with the request's own shell or write tool, then say so.

    Without such a tool (a side call for a title, for one) the answer is one line. Where the conversation names a
    command that ends the task, that is run last.
    """

    def policy(turn: Turn) -> Step:
        shell = next((tool for tool in turn.tools if _shell_key(tool)), None)
        tool = shell or next((tool for tool in turn.tools if _write_keys(tool)), None)
        if tool is None:
            return Step(content=f"Write {path}")
        if not turn.after_tool_result:
            written = _write_arguments(tool, path, text)
            return Step(content="I write the file.", tool_calls=[ScriptedCall(name=tool["name"], arguments=written)])
        if shell is not None and any(_SUBMIT in said for _, said in turn.messages):
            ending = _shell_arguments(shell, f"echo {_SUBMIT}")
            return Step(content="It is done.", tool_calls=[ScriptedCall(name=shell["name"], arguments=ending)])
        return Step(content=f"I wrote {path}.")

    return policy


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


def _write_keys(tool: dict[str, Any]) -> tuple[str, str] | None:
    """Which arguments of a tool that writes files hold the path and the text."""
    properties = (tool.get("parameters") or {}).get("properties") or {}
    paths = [key for key in ("path", "file_path", "filePath", "filename") if key in properties]
    texts = [key for key in ("content", "contents", "text", "file_text") if key in properties]
    return (paths[0], texts[0]) if paths and texts else None


def _write_arguments(tool: dict[str, Any], path: str, text: str) -> dict[str, Any]:
    keys = _write_keys(tool)
    if _shell_key(tool) or keys is None:
        return _shell_arguments(tool, f"echo {shlex.quote(text)} > {shlex.quote(path)}")
    return _example_arguments(tool.get("parameters") or {}, None) | {keys[0]: path, keys[1]: f"{text}\n"}


def _shell_arguments(tool: dict[str, Any], line: str) -> dict[str, Any]:
    """Arguments of a shell tool: what it requires, and the line, as a list of words where it wants one."""
    key, schema = _shell_key(tool), tool.get("parameters") or {}
    arguments = _example_arguments(schema, key)
    if key is not None:
        as_list = schema["properties"][key].get("type") == "array"
        arguments[key] = ["sh", "-c", line] if as_list else line
    return arguments


def _example_arguments(schema: dict[str, Any], shell_key: str | None) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    wanted = [key for key in properties if key in (schema.get("required") or []) or key == shell_key]
    return {key: _example(properties[key], key) for key in wanted}


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

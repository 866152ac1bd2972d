"""How a model family writes a tool call: the fixed text around a call's name and its arguments.

One record serves three readers: the parser looks for it in sampled text, the system prompt shows it where a template
does not explain tools, and constrained decoding builds a grammar from it. It must not know tokens or templates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from practicum.types.messages import ToolCall

CallKind = Literal["hermes", "xml", "llama", "mistral", "mistral_args", "deepseek", "deepseek_v31", "harmony"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMarkup:
    """The text of an answer's calls: `open`, then the calls with `between` among them, then `close`.

    One call is `begin`, its name, `middle`, its arguments, `end`. `arguments` says how those are written: as a JSON
    object, or as `<parameter=KEY>` blocks of bare values (`xml`). `open`, `close` and `between` may be empty; a family
    that writes one call an answer has `parallel` False. An `end` that is a stop token never shows in decoded text.
    """

    kind: CallKind
    begin: str
    middle: str
    end: str
    open: str = ""
    close: str = ""
    between: str = ""
    arguments: Literal["json", "xml"] = "json"
    parallel: bool = True

    def written(self, calls: Sequence[ToolCall]) -> str:
        """The calls as the family writes them, with JSON arguments as they stand."""
        return self.open + self.between.join(map(self._one, calls)) + self.close if calls else ""

    def _one(self, call: ToolCall) -> str:
        arguments = _xml_parameters(call.arguments) if self.arguments == "xml" else call.arguments or "{}"
        return f"{self.begin}{call.name}{self.middle}{arguments}{self.end}"


def _xml_parameters(arguments: str) -> str:
    members = json.loads(arguments or "{}")
    if not isinstance(members, dict):  # a caller's history may hold arguments that are no object
        members = {"arguments": members}
    return "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in members.items())


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


HERMES = CallMarkup(
    kind="hermes",
    begin='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    end="}\n</tool_call>",
    between="\n",
)
XML = CallMarkup(
    kind="xml",
    begin="<tool_call>\n<function=",
    middle=">\n",
    end="</function>\n</tool_call>",
    between="\n",
    arguments="xml",
)
LLAMA = CallMarkup(kind="llama", begin='{"name": "', middle='", "parameters": ', end="}", between="; ")
MISTRAL = CallMarkup(
    kind="mistral",
    open="[TOOL_CALLS][",
    begin='{"name": "',
    middle='", "arguments": ',
    end="}",
    between=", ",
    close="]",
)
MISTRAL_ARGS = CallMarkup(kind="mistral_args", begin="[TOOL_CALLS]", middle="[ARGS]", end="")
DEEPSEEK = CallMarkup(
    kind="deepseek",
    open="<｜tool▁calls▁begin｜>",
    begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    middle="\n```json\n",
    end="\n```<｜tool▁call▁end｜>",
    between="\n",
    close="<｜tool▁calls▁end｜>",
)
DEEPSEEK_V31 = CallMarkup(
    kind="deepseek_v31",
    open="<｜tool▁calls▁begin｜>",
    begin="<｜tool▁call▁begin｜>",
    middle="<｜tool▁sep｜>",
    end="<｜tool▁call▁end｜>",
    close="<｜tool▁calls▁end｜>",
)
HARMONY = CallMarkup(
    kind="harmony",
    begin="<|channel|>commentary to=functions.",
    middle=" <|constrain|>json<|message|>",
    end="<|call|>",
    parallel=False,
)

"""A Jinja environment in which the chat templates of published models run as they expect, and can do nothing else.

Source of the conventions: the chat-template documentation of the transformers library (trimmed blocks, loop controls,
`tojson` without HTML escapes, `raise_exception`, `strftime_now`, and a `generation` block that only marks a span).
It must not know messages or tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from practicum.errors import ConfigError, RequestError

_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


class TemplateRefusal(jinja2.TemplateError):
    """The template itself called `raise_exception`."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` renders as its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Read up to the end tag and return the body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. Raises ConfigError when the source does not compile."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"The model's chat template does not compile: {error}") from error
        self._concat = environment.concat
        self._constants = {
            **self._template.globals, "documents": None, "add_generation_prompt": True,
            "bos_token": bos, "eos_token": eos,
        }  # fmt: skip
        named = jinja2.meta.find_undeclared_variables(environment.parse(source))
        # What a request may set: the template's switches, but not what it is rendered from.
        self.options = frozenset(named - _GIVEN - environment.globals.keys())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: list[dict[str, Any]] | None,
        options: Mapping[str, Any] = {},
    ) -> str:
        """Text of the conversation with the prompt for the next assistant turn; `options` are further variables.

        Raises: RequestError when the template refuses the conversation or fails on it.
        """
        try:
            # `Template.render` without its merging of name spaces, which takes longer than a short conversation does.
            given = {**options, **self._constants, "messages": list(messages), "tools": tools}
            return self._concat(self._template.root_render_func(self._template.new_context(given, shared=True)))
        except TemplateRefusal as error:
            raise RequestError(
                f"The model's chat template refuses this conversation: {error}", param="messages"
            ) from error
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise RequestError(
                f"The model's chat template fails on this conversation: {error}", param="messages"
            ) from error


def _refuse(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

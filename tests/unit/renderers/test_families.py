"""Each family's template: what it is recognised as, that it loses nothing, whose ids are whose, and prefixes.

Runs over fixtures of our own, and over the families' real files with `make test-families`.
"""

from __future__ import annotations

import json
import random

import pytest
from tests.unit.renderers.family_fixtures import ALL_FAMILIES, FIXTURES, fixture_renderer, renderer_for
from tests.unit.renderers.family_talk import TOOLS, conversation

from practicum.errors import ConfigError, RequestError
from practicum.renderers import CannotExtend, Renderer, prefix_findings, render_with_spans
from practicum.types.messages import Message, Thought, ToolCall

FAMILY = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_5": "xml",
    "qwen3_5_small": "xml",
    "smollm2": "plain",
    "smollm3": "hermes",
    "llama3": "llama",
    "llama3_2": "llama",
    "real:llama3": "plain",
    "gemma3": "plain",
    "gptoss": "harmony",
    "mistral": "mistral",
    "mistral_args": "mistral_args",
    "deepseek_v3": "deepseek",
    "deepseek_r1": "deepseek",
    "deepseek_v31": "deepseek_v31",
    "generic": "plain",
}
# What keeps each template from being prefix-preserving; none for those that are.
BREAKS = {
    "qwen3": {"reasoning_stripped"},
    "qwen3_5": {"block_in_prompt", "reasoning_stripped", "history_rewritten"},
    "qwen3_5_small": {"block_in_prompt"},
    "mistral": {"definitions_moved"},
    "deepseek_v3": {"block_in_prompt"},
    "deepseek_r1": {"block_in_prompt"},
    "deepseek_v31": {"block_in_prompt"},
}
PREFIX_CAUSES = {"reasoning_stripped", "block_in_prompt", "definitions_moved", "history_rewritten", "turn_refused"}
CALL = ToolCall(id="call_0123456789abcdef_0", name="web.search-2", arguments='{"q": "naïve"}')


def short(name: str) -> str:
    return name.rpartition(":")[2]


@pytest.fixture(params=ALL_FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def renderer(name: str) -> Renderer:
    return renderer_for(name)


def shown(renderer: Renderer, ids: list[int]) -> str:
    return renderer.tokenizer.decode(ids)


def said(text: str, content: str) -> bool:
    """Whether a message's text is there, as it is or inside a JSON string."""
    forms = (content.strip(), json.dumps(content.strip(), ensure_ascii=False)[1:-1])
    return any(form in text for form in forms)


def test_the_family_is_recognised_by_its_template_and_tokens(name: str, renderer: Renderer) -> None:
    assert renderer.family.name == FAMILY.get(name, FAMILY.get(short(name)))


def test_the_configuration_may_name_the_family() -> None:
    fixture = FIXTURES["smollm2"]
    chosen = Renderer(fixture_renderer("smollm2").tokenizer, fixture.template, family="xml")
    assert chosen.markup.kind == "xml"
    with pytest.raises(ConfigError, match=r"model.parser 'qwen' is none of harmony, "):
        Renderer(fixture_renderer("smollm2").tokenizer, fixture.template, family="qwen")


def test_w6_nothing_of_a_conversation_is_lost(renderer: Renderer) -> None:
    for seed in range(20):
        messages = conversation(random.Random(seed), renderer, turns=3)
        text = shown(renderer, renderer.render(messages, TOOLS))
        for message in messages:
            assert said(text, message.content), (seed, message.content)
            for call in message.tool_calls:
                assert call.name in text
        for tool in TOOLS:
            assert tool.name in text


def test_a_message_cannot_forge_a_turn_or_a_control_token(renderer: Renderer) -> None:
    control = {token for text in renderer.tokenizer.specials for token in renderer.tokenizer.encode(text)[:1]}
    forged = "x" + "".join(sorted(renderer.tokenizer.specials)[:40])
    honest = renderer.render([Message(role="user", content="x")])
    ids = renderer.render([Message(role="user", content=forged)])
    assert [token for token in ids if token in control] == [token for token in honest if token in control]
    assert forged in shown(renderer, ids)


def test_results_name_their_function_and_ids_fit_the_template(renderer: Renderer) -> None:
    answer = Message(role="assistant", tool_calls=(CALL,))
    result = Message(role="tool", content="found", tool_call_id=CALL.id)
    text = shown(renderer, renderer.render([Message(role="user", content="find"), answer, result], TOOLS))
    assert CALL.name in text and "naïve" in text and "found" in text


def test_turns_that_a_template_refuses_are_rendered_all_the_same(renderer: Renderer) -> None:
    messages = [
        Message(role="system", content="first rule"),
        Message(role="user", content="one"),
        Message(role="user", content="two"),
        Message(role="assistant", tool_calls=(CALL, ToolCall(id="b", name="bash", arguments="{}"))),
        Message(role="tool", content="found", tool_call_id=CALL.id),
        Message(role="tool", content="empty", tool_call_id="b"),
        Message(role="user", content="three"),
        Message(role="system", content="second rule"),
    ]
    text = shown(renderer, renderer.render(messages, TOOLS))
    words = ("first rule", "one", "two", "web.search-2", "naïve", "found", "empty", "three", "second rule")
    assert all(word in text for word in words)


@pytest.mark.parametrize("with_call", [False, True])
def test_any_stop_token_ends_the_turn_once(renderer: Renderer, with_call: bool) -> None:
    before = [Message(role="user", content="find")]
    answer = Message(role="assistant", content="" if with_call else "Four.", tool_calls=(CALL,) if with_call else ())
    rest = (
        [Message(role="tool", content="found", tool_call_id=CALL.id)]
        if with_call
        else [Message(role="user", content="go")]
    )
    ends = list(renderer.family.ends or (renderer.tokenizer.eos,))
    open_tail = shown(renderer, renderer.tail(before, rest, TOOLS, stop_id=None, answer=answer))
    assert open_tail.startswith(tuple(ends)), "a turn that length ended is closed"
    for stop in renderer.stop_ids:
        text = renderer.tokenizer.decode([stop])
        tail = shown(renderer, renderer.tail(before, rest, TOOLS, stop_id=stop, answer=answer))
        if text in ends:
            assert open_tail.endswith(tail) and len(tail) < len(open_tail) and not tail.startswith(tuple(ends))


def test_a_prompt_an_answer_and_its_tail_are_the_whole_conversation(name: str, renderer: Renderer) -> None:
    """Where the template is prefix-preserving, the splice gives what rendering anew would give."""
    if short(name) in BREAKS:
        pytest.skip("the template rewrites its history: see the next tests")
    before, rest = [Message(role="user", content="two and two?")], [Message(role="user", content="and three?")]
    answer = Message(role="assistant", content="Four.")
    whole = renderer.render([*before, answer, *rest])
    stop = renderer.tokenizer.encode(renderer.tokenizer.eos)[0]
    begin = "<|channel|>final<|message|>" if renderer.markup.kind == "harmony" else ""
    completion = [*renderer.tokenizer.encode(f"{begin}Four."), stop]
    made = renderer.render(before) + completion + renderer.tail(before, rest, stop_id=stop, answer=answer)
    if renderer.markup.kind == "harmony":  # `<|return|>` was sampled where the history has `<|end|>`
        return_id, end_id = (renderer.tokenizer.encode(text)[0] for text in ("<|return|>", "<|end|>"))
        made = [end_id if token == return_id else token for token in made]
    assert made == whole


def test_an_answer_that_a_person_wrote_is_read_back_as_text(renderer: Renderer) -> None:
    prompt = renderer.render([Message(role="user", content="two and two?")])
    parser = renderer.parser((), str, prompt_ids=prompt)
    text = renderer.answer_opening(prompt) + "Four."
    assert [*parser.feed(text), *parser.finish()] == ["Four."]


@pytest.mark.parametrize(
    ("template", "answer", "thought"),
    [
        ("[INST]{{ messages[0].content }}[/INST][THINK]", "Hm.[/THINK]Four.", "Hm."),
        ("{{ messages[0].content }}{# [THINK] #}", "[THINK]Hm.[/THINK]Four.", "Hm."),
        ("{{ messages[0].content }}{# </think> #}", "<think>\nHm.\n</think>\n\nFour.", "Hm."),
        ("{{ messages[0].content }}{# </think> #}<think>", "Hm.</think>Four.", "Hm."),
    ],
)
def test_reasoning_tags_are_read_off_the_template(template: str, answer: str, thought: str) -> None:
    renderer = Renderer(fixture_renderer("generic").tokenizer, template)
    parser = renderer.parser((), str)
    assert [*parser.feed(answer), *parser.finish()] == [Thought(text=thought), "Four."]


def test_whether_the_reasoning_is_open_is_read_off_each_prompt() -> None:
    """DeepSeek R1 opens it behind a question, and not behind a tool's result."""
    renderer = fixture_renderer("deepseek_r1")
    question = [Message(role="user", content="find")]
    result = Message(role="tool", content="found", tool_call_id=CALL.id)
    behind_result = [*question, Message(role="assistant", tool_calls=(CALL,)), result]
    for messages, expected in ((question, [Thought(text="Four.")]), (behind_result, ["Four."])):
        parser = renderer.parser((), str, prompt_ids=renderer.render(messages))
        assert [*parser.feed("Four."), *parser.finish()] == expected


def test_findings_name_what_breaks_a_prefix(name: str, renderer: Renderer) -> None:
    causes = {finding.cause for finding in prefix_findings(renderer)}
    assert causes & PREFIX_CAUSES == BREAKS.get(short(name), set())
    assert "cannot_extend" not in causes
    assert all(finding.meaning.count(": ") == 1 for finding in prefix_findings(renderer))


def test_a_rendered_prefix_is_a_prefix_or_the_findings_say_why_not(renderer: Renderer) -> None:
    declared = {finding.cause for finding in prefix_findings(renderer)} & {*PREFIX_CAUSES, "tokens_merge"}
    broken = 0
    for seed in range(40):
        messages = conversation(random.Random(seed), renderer, turns=3)
        at = [i for i, m in enumerate(messages) if m.role == "assistant"][random.Random(seed).randint(0, 2)]
        prefix, whole = renderer.render(messages[:at], TOOLS), renderer.render(messages, TOOLS)
        broken += whole[: len(prefix)] != prefix
    assert bool(broken) <= bool(declared), f"{broken} of 40 prefixes were not kept, and no finding says so"


def test_spans_say_whose_ids_are_whose(renderer: Renderer) -> None:
    messages = [
        Message(role="system", content="rule_one"),
        Message(role="user", content=" question_two 🎉\n"),
        Message(role="assistant", tool_calls=(CALL,)),
        Message(role="tool", content="result_three", tool_call_id=CALL.id),
        Message(role="assistant", content="answer_four"),
        Message(role="user", content="question_five"),
    ]
    spanned = render_with_spans(renderer, messages, TOOLS)
    assert list(spanned.ids) == renderer.render(messages, TOOLS)
    shown_words = ["rule_one", "question_two 🎉", "naïve", "result_three", "answer_four", "question_five"]
    taken: set[int] = set()
    for word, span in zip(shown_words, spanned.spans, strict=True):
        assert span is not None, word
        start, stop = span
        text = shown(renderer, list(spanned.ids[max(start - 1, 0) : stop + 1]))
        assert word in text
        assert not any(other in text for other in shown_words if other != word)
        assert not taken & set(range(start, stop))
        taken |= set(range(start, stop))
    control = {renderer.tokenizer.encode(text)[0] for text in renderer.tokenizer.specials}
    assert not {i for i in taken if spanned.ids[i] in control and renderer.markup.kind == "hermes"}


def test_a_message_without_words_has_no_span() -> None:
    spanned = render_with_spans(fixture_renderer("qwen3"), [Message(role="user"), Message(role="user", content="x")])
    assert spanned.spans[0] is None and spanned.spans[1] is not None


def test_a_message_that_its_template_rewrites_has_no_span() -> None:
    source = "{% for m in messages %}{{ m.content | upper if m.content == 'loud' else m.content }}<end>{% endfor %}"
    renderer = Renderer(fixture_renderer("generic").tokenizer, source)
    messages = [Message(role="user", content="loud"), Message(role="user", content="quiet")]
    spanned = render_with_spans(renderer, messages)
    assert spanned.spans[0] is None
    start, stop = spanned.spans[1] or (0, 0)
    assert shown(renderer, list(spanned.ids[start:stop])) == "quiet"


def test_a_result_needs_its_call_in_harmony_and_several_cannot_be_extended() -> None:
    renderer = fixture_renderer("gptoss")
    before, results = [Message(role="user", content="a")], [Message(role="tool", content="r", tool_call_id=CALL.id)]
    two = Message(role="assistant", tool_calls=(CALL, ToolCall(id="b", name="bash", arguments="{}")))
    with pytest.raises(CannotExtend, match="this answer has several"):
        renderer.tail(before, results, TOOLS, stop_id=None, answer=two)


def test_a_template_that_refuses_everything_says_so() -> None:
    renderer = Renderer(fixture_renderer("generic").tokenizer, "{{ raise_exception('never') }}")
    with pytest.raises(RequestError, match="never"):
        renderer.render([Message(role="user", content="x")])
    assert {finding.cause for finding in prefix_findings(renderer)} == {"turn_refused"}

"""Legacy completions through the openai SDK against a whole server: the ids that go in, and what the record says.

What is pinned: ids that a caller sends are the recorded prompt, unchanged; text is encoded without the chat template,
and a special token that it spells out stays text; a raw prompt joins no conversation and a comment on it has a reason
not to train.
"""

from __future__ import annotations

from typing import Any

import openai
import pytest

from practicum.dialects.registry import call_id_in
from practicum.engines.scripted import ScriptedSampler, Step, play
from practicum.episodes.rows import training_rows
from practicum.live.prompts import PromptBook
from practicum.renderers import ByteTokenizer

START = Any
HI = [{"role": "user", "content": "Hi"}]
# A conversation that the caller rendered itself, special ids included, and a byte that is no UTF-8.
IDS = [256, *b"user\nHi", 257, *b"\n", 256, *b"assistant\n", 255]


@pytest.fixture
def writer(start: START) -> Any:
    return start(ScriptedSampler(play([Step(content="é one STOP two")])))


def create(up: Any, prompt: Any, prefix: str = "", **fields: Any) -> Any:
    return up.openai(prefix=prefix).completions.create(
        **{"model": "practicum", "prompt": prompt, "max_tokens": 99} | fields
    )


def test_token_ids_are_the_recorded_prompt(writer: Any) -> None:
    answer = create(writer, IDS)
    (call,) = writer.calls()
    assert call.prompt_ids == tuple(IDS) and call.dialect == "openai_completions"
    assert call.completion_ids == (*"é one STOP two".encode(), ByteTokenizer.END)
    assert (call.status, call.kind, call.fork_reason) == ("complete", "agent", "raw_prompt")
    assert answer.id == f"cmpl-{call.call_id}" and answer.object == "text_completion"
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("é one STOP two", "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(IDS), len(call.completion_ids))
    (row,) = training_rows([call]).rows
    assert (row.prompt_ids, row.completion_ids) == (call.prompt_ids, call.completion_ids)


@pytest.mark.parametrize("prompt", ["Once <|im_start|> upon é", ["Once <|im_start|> upon é"]])
def test_text_is_encoded_plainly(writer: Any, prompt: Any) -> None:
    create(writer, prompt)
    assert writer.calls()[0].prompt_ids == tuple("Once <|im_start|> upon é".encode())
    assert writer.calls()[0].request["prompt"] == prompt


def test_a_stream_with_usage_and_logprobs(writer: Any) -> None:
    chunks = list(create(writer, IDS, stream=True, stream_options={"include_usage": True}, logprobs=0))
    (call,) = writer.calls()
    *pieces, usage = chunks
    assert len(pieces) > 5 and "".join(piece.choices[0].text for piece in pieces) == "é one STOP two"
    assert [piece.choices[0].finish_reason for piece in pieces[-2:]] == [None, "stop"]
    assert usage.choices == [] and usage.usage.completion_tokens == len(call.completion_ids)
    logprobs = [value for piece in pieces for value in piece.choices[0].logprobs.token_logprobs]
    assert logprobs == list(call.logprobs) and call.prompt_ids == tuple(IDS)


@pytest.mark.parametrize("stream", [True, False])
def test_stop_strings_and_lengths_end_an_answer(writer: Any, stream: bool) -> None:
    def told(**fields: Any) -> tuple[str, str]:
        made = create(writer, "a", stream=stream, **fields)
        choices = [choice for part in (made if stream else [made]) for choice in part.choices]
        return "".join(choice.text for choice in choices), choices[-1].finish_reason

    assert told(stop="STOP") == ("é one ", "stop")
    assert told(max_tokens=4) == ("é o", "length")
    assert len(writer.calls()[1].completion_ids) == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, True]}, "prompt.1"),
        ({"prompt": [1, 2, 259]}, "prompt.2"),
        ({"prompt": [-1]}, "prompt.0"),
        ({"prompt": [10**30]}, "prompt.0"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "suffix": "z"}, "suffix"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "logprobs": 2}, "logprobs"),
    ],
)
def test_w10_refusals_name_the_field_and_leave_no_record(up: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        create(up, **fields)
    assert caught.value.param == param and up.calls() == []


def test_w16_w17_errors_have_openais_shape(start: START) -> None:
    up = start(ScriptedSampler(play([Step(content="half", fail="the engine burns")]), context_length=50))
    with pytest.raises(openai.BadRequestError) as caught:
        create(up, "x" * 60)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.NotFoundError):
        create(up, "a", model="gpt-x")
    with pytest.raises(openai.AuthenticationError):
        up.openai(key="sk-nobody").completions.create(model="practicum", prompt="a")
    with pytest.raises(openai.APIError, match="burns"):
        list(create(up, "a", stream=True))
    assert [call.status for call in up.calls()] == ["failed"]


def test_the_route_without_the_version_and_a_repeated_key(writer: Any) -> None:
    body = {"model": "practicum", "prompt": IDS, "max_tokens": 99}
    with writer.http() as http:
        first = http.post("/completions", json=body, headers={"Idempotency-Key": "k1"})
        again = http.post("/v1/completions", json=body, headers={"Idempotency-Key": "k1"})
    assert again.json() == first.json() and again.headers["x-practicum-replayed"] == "true"
    assert len(writer.calls()) == 1


def test_raw_prompts_and_conversations_share_a_session_and_no_episode(up: Any) -> None:
    create(up, "a", "/s/one")
    up.openai(prefix="/s/one").chat.completions.create(model="practicum", messages=HI)
    create(up, [97], "/s/one")
    create(up, "a", "/s/one")
    raw, chat, same, repeat = up.calls("one")
    assert [call.fork_reason for call in (raw, chat, same)] == ["raw_prompt", "new_conversation", "raw_prompt"]
    assert len({call.episode_id for call in (raw, chat, same, repeat)}) == 4
    assert same.prompt_hash == raw.prompt_hash, "text and ids that are one prompt have one hash"
    assert repeat.kind == "retry"


@pytest.mark.parametrize("prompt", ["Once upon", [256, *b"Once"]])
def test_what_reads_records_back_takes_a_raw_completion(up: Any, prompt: Any) -> None:
    create(up, prompt, max_tokens=7, temperature=0.5)
    (call,) = up.calls()
    book = PromptBook(up.renderer, 256)
    assert book.question(call) == ("Once upon" if isinstance(prompt, str) else "<|im_start|>Once")
    assert (book.params(call).max_tokens, book.params(call).temperature) == (7, 0.5)
    with pytest.raises(ValueError, match="no user message"):
        book.hindsight_ids(call, ["too long"])


def test_the_answers_id_leads_back_to_the_call(up: Any) -> None:
    assert call_id_in(create(up, "Once").id) == up.calls()[0].call_id

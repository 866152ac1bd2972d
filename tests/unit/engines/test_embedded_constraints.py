"""Constrained decoding on a random model, which without a constraint never writes a match.

Pins: every answer that ended matches its constraint; raw logprobs stay the policy's own and sampled ones are those of
what the constraint left (L5); rows without a constraint are what they are alone; a stop id ends an answer only where
the grammar may end; a constraint that cannot be met is refused before anything is sampled, and fails nobody else.
"""

import asyncio
import json
import math
import re
import time

import pytest
import torch
from pydantic import TypeAdapter

from practicum.engines.constraints import COMPILE_S, MOST_CHARS, Constraints
from practicum.engines.embedded.draw import draw
from practicum.engines.embedded.sampler import EmbeddedSampler
from practicum.errors import EngineError, RequestError, Unsupported
from practicum.renderers import ByteTokenizer
from practicum.types.tokens import Constraint, SamplingParams

STOP = ByteTokenizer.END
HOT = {"prompt": [5, 6, 7], "stop_ids": [STOP], "temperature": 1.5, "max_tokens": 2000}
WORD = {"type": "string", "maxLength": 6}
PERSON = {
    "type": "object",
    "properties": {
        "name": WORD,
        "état": {"enum": ["né", "parti", "日本"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "note": {"type": "string", "pattern": "^[a-z]{2,4}$"},
    },
    "required": ["name", "état"],
    "additionalProperties": False,
}
NESTED = {
    "$defs": {"person": PERSON},
    "type": "object",
    "properties": {
        "team": {"type": "array", "items": {"$ref": "#/$defs/person"}, "minItems": 1, "maxItems": 2},
        "lead": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
        "open": {"type": "boolean"},
    },
    "required": ["team", "lead", "open"],
    "additionalProperties": False,
}


# Ten rules, each four times the next: a million letters.
DOUBLING = "start: r0\n" + "\n".join(f"r{n}: " + f"r{n + 1} " * 4 for n in range(10)) + '\nr10: "x"'


def schema(value, **more):
    return Constraint(kind="json_schema", text=json.dumps(value), **more)


def is_person(value):
    assert {"name", "état"} <= value.keys() <= {"name", "état", "age", "note"}
    assert isinstance(value["name"], str) and len(value["name"]) <= 6 and value["état"] in ("né", "parti", "日本")
    assert 0 <= value.get("age", 0) <= 150 and re.fullmatch("[a-z]{2,4}", value.get("note", "ab"))
    return True


def is_team(value):
    assert value.keys() == {"team", "lead", "open"} and value["open"] in (True, False)
    assert 1 <= len(value["team"]) <= 2 and all(map(is_person, value["team"]))
    return value["lead"] is None or is_person(value["lead"])


@pytest.fixture
def sampler(make_model):
    made = EmbeddedSampler(make_model(max_position_embeddings=4096), tokenizer=ByteTokenizer())
    yield made
    made.close()


def text_of(done):
    assert done.error is None and done.finish_reason == "stop", done
    assert done.ids[-1] == STOP and STOP not in done.ids[:-1]
    return bytes(done.ids[:-1]).decode("utf-8")  # strict: no character is ever broken


@pytest.mark.parametrize(
    ("constraint", "matches"),
    [
        (schema(PERSON), lambda text: is_person(json.loads(text))),
        (schema(NESTED), lambda text: is_team(json.loads(text))),
        (schema({"enum": ["a", 1, None, "ü"]}), lambda text: json.loads(text) in ("a", 1, None, "ü")),
        (
            schema({"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 5}),
            lambda text: 3 <= len(TypeAdapter(list[bool]).validate_json(text, strict=True)) <= 5,
        ),
        (Constraint(kind="regex", text="[A-Z]{2}-[0-9]{3,5}"), re.compile("[A-Z]{2}-[0-9]{3,5}").fullmatch),
        (Constraint(kind="grammar", text='start: "yes" | "no" | "peut-être"'), {"yes", "no", "peut-être"}.__contains__),
    ],
    ids=["object", "nested", "enum", "array", "regex", "grammar"],
)
def test_a_hundred_hot_samples_all_match(sampler, make_request, constraint, matches):
    done = sampler.generate([make_request(seed, constraint=constraint, **HOT) for seed in range(100)])
    texts = [text_of(each) for each in done]
    assert all(matches(text) for text in texts)
    assert len(set(texts)) > 2


def test_l5_raw_logprobs_are_the_policys_and_sampled_ones_what_the_constraint_left(sampler, make_request):
    constraint = Constraint(kind="regex", text="[ab]c")
    for temperature in (1.0, 0.6):
        request = make_request(1, constraint=constraint, stop_ids=[STOP], temperature=temperature)
        done = sampler.generate([request])[0]
        scored = sampler.score(request.prompt_ids, done.ids, version=0, temperature=temperature)
        assert done.logprobs == pytest.approx(scored, abs=1e-4)
        ab = sampler.score(request.prompt_ids, [ord("a")], version=0, temperature=temperature)
        ab += sampler.score(request.prompt_ids, [ord("b")], version=0, temperature=temperature)
        left = math.log(sum(map(math.exp, ab)))
        assert done.sampled_logprobs == pytest.approx([scored[0] - left, 0.0, 0.0], abs=1e-4)


def test_a_greedy_answer_takes_the_best_that_is_allowed(sampler, make_request):
    request = make_request(2, constraint=Constraint(kind="regex", text="[A-Z]"), stop_ids=[STOP], temperature=0.0)
    best = max(range(65, 91), key=lambda token: sampler.score(request.prompt_ids, [token], version=0)[0])
    assert sampler.generate([request])[0].ids == (best, STOP)


def test_rows_without_a_constraint_are_the_same_beside_constrained_ones():
    logits = torch.randn(3, 259, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(top_p=0.8), SamplingParams(), SamplingParams(temperature=0.0)]
    numbers = [0.3, 0.7, 0.5]
    mask = torch.zeros(259, dtype=torch.bool)
    mask[65:91] = True
    beside = draw(logits, params, numbers, [None, mask, None])
    alone = draw(logits, params, numbers)
    assert (beside[0], beside[2]) == (alone[0], alone[2])
    assert 65 <= beside[1].token < 91 and beside[1].sampled_logprob > beside[1].logprob


def test_neighbours_with_a_constraint_change_no_token(sampler, make_request):
    free = [make_request(index, stop_ids=[STOP], max_tokens=20) for index in range(4)]
    bound = [make_request(9 + index, constraint=schema(PERSON), **HOT) for index in range(4)]
    mixed = sampler.generate([request for pair in zip(free, bound, strict=True) for request in pair])
    assert [each.ids for each in mixed[::2]] == [each.ids for each in sampler.generate(free)]
    assert all(is_person(json.loads(text_of(each))) for each in mixed[1::2])


def test_the_mask_comes_before_top_k_and_top_p():
    logits = torch.tensor([[5.0, 4.0, 1.0, 0.0, -80.0]])
    mask = torch.tensor([False, False, True, True, False])
    for params, kept in ((SamplingParams(top_k=1), {2}), (SamplingParams(top_p=0.8), {2, 3})):
        drawn = [draw(logits, [params], [number], [mask])[0] for number in (0.0, 0.5, 0.999)]
        assert {each.token for each in drawn} == kept
    least = draw(logits, [SamplingParams()], [0.5], [torch.tensor([False] * 4 + [True])])[0]
    assert (least.token, least.sampled_logprob) == (4, 0.0) and least.logprob == pytest.approx(-85.3, abs=0.1)


def test_an_answer_is_cut_at_its_length_and_ends_without_stop_ids_where_the_grammar_does(sampler, make_request):
    cut, whole = sampler.generate(
        [
            make_request(1, constraint=schema(PERSON), stop_ids=[STOP], max_tokens=4),
            make_request(2, constraint=Constraint(kind="regex", text="[ab]{3}"), stop_ids=[]),
        ]
    )
    assert (cut.finish_reason, len(cut.ids)) == ("length", 4) and cut.error is None
    assert (whole.finish_reason, len(whole.ids)) == ("stop", 3) and re.fullmatch("[ab]{3}", bytes(whole.ids).decode())


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (schema({"type": "wat"}), "Invalid type: wat"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable"),
        (schema({"type": "object", "not": {}}), "not"),
        (schema({"$ref": "http://127.0.0.1/x"}), "http://127.0.0.1/x"),
        (Constraint(kind="json_schema", text="[1]"), "object"),
        (Constraint(kind="json_schema", text='{"const": "\\ud800"}'), "escape"),
        (schema({"type": "integer", "multipleOf": 99_991}), "multipleOf"),
        (schema({"allOf": [{"multipleOf": 997}, {"multipleOf": 9.91}], "type": "number"}), "multipleOf"),
        (Constraint(kind="grammar", text='start: %json {"type": "integer", "multipleO\\u0066": 999983}'), "multipleOf"),
        (Constraint(kind="regex", text="("), "unclosed"),
        (Constraint(kind="regex", text="a\ud800"), "surrogates"),
        (Constraint(kind="grammar", text="start: missing"), "missing"),
        (Constraint(kind="grammar", text='start: start "a"'), "nothing can match"),
        (Constraint(kind="regex", text="a" * (MOST_CHARS + 1)), "most is"),
    ],
)
def test_what_cannot_be_met_is_refused_before_sampling_and_fails_nobody_else(sampler, make_request, constraint, reason):
    wrong = make_request(1, constraint=Constraint(kind=constraint.kind, text=constraint.text, source="the.field"))

    async def both():
        good = asyncio.create_task(anext(sampler.sample(make_request(2))))
        with pytest.raises(RequestError) as caught:
            await anext(sampler.sample(wrong))
        return (await good), caught.value

    chunk, error = asyncio.run(both())
    assert error.param == "the.field" and "`the.field`" in error.message and reason in error.message
    assert "\n" not in error.message and len(error.message) < 500
    assert len(chunk.ids) == 1 and sampler.healthy


def test_keywords_that_are_beyond_the_engine_are_left_out_only_where_that_was_asked(sampler, make_request):
    odd = {"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "maxItems": 2}
    with pytest.raises(RequestError, match="uniqueItems"):
        sampler.generate([make_request(1, constraint=schema(odd), **HOT)])
    done = sampler.generate([make_request(1, constraint=schema(odd, strict=False), **HOT)])[0]
    assert json.loads(text_of(done)) in ([], [1], [1, 1])


def test_an_engine_without_a_tokenizer_refuses_by_name(model, make_request):
    sampler = EmbeddedSampler(model)
    with pytest.raises(Unsupported):
        sampler.generate([make_request(1, constraint=Constraint(kind="json_object"))])
    assert sampler.generate([make_request(1)])[0].error is None
    sampler.close()


def test_a_constraint_that_leads_nowhere_ends_its_own_sequence_alone(sampler, make_request):
    # After `a` this grammar wants a special token that ends answers, and those are the engine's own to allow.
    nowhere = Constraint(kind="grammar", text=f'start: "a" <[{STOP}]> "b"')
    good, bad = sampler.generate([make_request(1), make_request(2, constraint=nowhere, stop_ids=[STOP])])
    assert bad.finish_reason == "error" and "no token" in bad.error and bad.ids == (ord("a"),)
    assert good.error is None and sampler.healthy


@pytest.mark.parametrize(
    "constraint",
    [
        schema({"enum": [f"value-{index}" for index in range(15_000)]}),
        schema({"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(2000)}}),
        schema({"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(3)]} for i in range(12)]}),
        schema({"type": "string", "pattern": "^((a{0,100}){0,100}){0,100}$"}),
        schema({"type": "integer", "multipleOf": 9973}),
        schema({"type": "object", "required": [f"r{index}" for index in range(4000)]}),
        schema({"type": "array", "items": {}, "minItems": 100_000}),
        Constraint(kind="regex", text="(a|b)*a(a|b){20000}"),
        Constraint(kind="grammar", text=DOUBLING),
    ],
    ids=["enum", "properties", "allOf", "pattern", "multipleOf", "required", "array", "regex", "grammar"],
)  # fmt: skip
def test_hostile_constraints_compile_or_are_refused_in_bounded_time(constraint):
    started = time.monotonic()
    try:
        matcher = Constraints(ByteTokenizer(), 259).matcher(constraint, [STOP])
        for _ in range(20):
            matcher.advance(int(matcher.allowed().nonzero()[0][0]))
    except (RequestError, EngineError):
        pass
    assert time.monotonic() - started < COMPILE_S


def test_multiples_that_people_ask_for_are_fine(sampler, make_request):
    money = schema({"type": "object", "properties": {"eur": {"type": "number", "multipleOf": 0.01, "minimum": 0,
                    "maximum": 99}, "n": {"type": "integer", "multipleOf": 250, "minimum": 250, "maximum": 1000}},
                    "required": ["eur", "n"], "additionalProperties": False})  # fmt: skip
    value = json.loads(text_of(sampler.generate([make_request(1, constraint=money, **HOT)])[0]))
    assert 0 <= value["eur"] <= 99 and value["n"] in (250, 500, 750, 1000)


def test_a_compiled_constraint_is_kept_and_its_copies_do_not_touch_each_other():
    constraints = Constraints(ByteTokenizer(), 300)
    first, second = (constraints.matcher(Constraint(kind="regex", text="ab"), [STOP]) for _ in range(2))
    assert first.allowed().nonzero()[0].tolist() == [ord("a")] and first.allowed().shape == (300,)
    first.advance(ord("a"))
    first.advance(ord("b"))
    assert first.finished and first.allowed().nonzero()[0].tolist() == [STOP]
    assert not second.may_end and second.allowed().nonzero()[0].tolist() == [ord("a")]
    assert second.matches(b"ab")

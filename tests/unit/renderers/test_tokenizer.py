"""Tokenizers and the incremental decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from practicum.errors import ConfigError
from practicum.renderers import ByteTokenizer, HubTokenizer, IncrementalDecoder
from practicum.renderers.tokenizer import without_surrogates


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as published models have it, with a byte-level BPE trained on the spot."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog"] * 3,
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    return folder


@given(st.text())
def test_bytes_come_back_as_they_went_in(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == without_surrogates(text)
    assert tokenizer.decode(tokenizer.encode_plain(text)) == without_surrogates(text)


def test_special_tokens_are_recognised_only_where_that_is_wanted() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("a<|im_end|>") == [97, 257]
    assert tokenizer.encode_plain("<|im_end|>") == list(b"<|im_end|>")


def test_an_id_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        ByteTokenizer().decode([259])


def test_hub_tokenizer_collects_every_end_of_turn_id(model_folder: Path) -> None:
    tokenizer = HubTokenizer.from_folder(model_folder)
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.eos == "<|endoftext|>"
    assert "<|im_start|>" in tokenizer.specials


def test_hub_tokenizer_encodes_spelled_out_specials_as_text(model_folder: Path) -> None:
    tokenizer = HubTokenizer.from_folder(model_folder)
    assert tokenizer.encode("<|im_end|>") == [2]
    plain = tokenizer.encode_plain("<|im_end|>")
    assert 2 not in plain and tokenizer.decode(plain) == "<|im_end|>"


def test_turn_tokens_that_a_file_does_not_call_special_cannot_be_forged() -> None:
    """As DeepSeek's are: added tokens with `special` false."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    bpe.add_tokens([tokenizers.AddedToken("<｜User｜>"), tokenizers.AddedToken("<think>")])
    tokenizer = HubTokenizer(bpe, eos_ids=frozenset({0}), bos="", eos="")
    assert tokenizer.specials == {"<｜User｜>"}, "what a text may say is not a turn"
    assert len(tokenizer.encode("<｜User｜>")) == 1
    plain = tokenizer.encode_plain("<｜User｜>")
    assert len(plain) > 1 and tokenizer.decode(plain) == "<｜User｜>"


def test_a_lone_surrogate_does_not_crash_the_tokenizer(model_folder: Path) -> None:
    tokenizer = HubTokenizer.from_folder(model_folder)
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a�b"


def test_a_folder_without_end_of_turn_is_refused(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model_folder / "tokenizer.json").read_bytes())
    with pytest.raises(ConfigError, match="ends a turn"):
        HubTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", [None, "{}", "not JSON"])
def test_a_folder_without_a_usable_tokenizer_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        HubTokenizer.from_folder(tmp_path)


@given(st.text(min_size=1), st.lists(st.integers(min_value=1, max_value=5), min_size=1))
def test_pieces_add_up_and_never_break_a_character(text: str, sizes: list[int]) -> None:
    text = without_surrogates(text).replace("�", "?")
    tokenizer = ByteTokenizer()
    decoder = IncrementalDecoder(tokenizer)
    ids = tokenizer.encode_plain(text)
    pieces, at, turn = [], 0, 0
    while at < len(ids):
        size = sizes[turn % len(sizes)]
        pieces.append(decoder.feed(ids[at : at + size]))
        at, turn = at + size, turn + 1
    pieces.append(decoder.finish())
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


def test_hub_pieces_add_up(model_folder: Path) -> None:
    tokenizer = HubTokenizer.from_folder(model_folder)
    decoder = IncrementalDecoder(tokenizer)
    text = "the fox 🎉 – über"
    pieces = [decoder.feed([token]) for token in tokenizer.encode(text)] + [decoder.finish()]
    assert "".join(pieces) == text


def test_bytes_that_are_no_text_come_out_in_the_end() -> None:
    decoder = IncrementalDecoder(ByteTokenizer())
    out = "".join(decoder.feed([0xFF]) for _ in range(50))
    assert len(out) == 47, "bytes that can never become a character are not held for ever"
    assert out + decoder.finish() == "�" * 50

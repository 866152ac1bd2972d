"""Text to ids and back, without transformers and without torch.

`HubTokenizer` reads a model folder's `tokenizer.json`; `ByteTokenizer` needs no file. Both recognise special tokens in
`encode` and treat the same strings as plain text in `encode_plain`: what a user wrote must not be able to forge a turn.
`IncrementalDecoder` turns ids, as they are sampled, into text that never breaks a character.

Invariant: what `IncrementalDecoder` has emitted is never taken back. It must not know messages or templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from practicum.errors import ConfigError
from practicum.types.seams import Tokenizer

_SURROGATE = re.compile("[\ud800-\udfff]")
# A character has at most four bytes, so an unfinished one shows as at most three U+FFFD.
_LONGEST_OPEN_END = 3
# DeepSeek's turn tokens and some of Qwen's are not marked as special, yet what a user writes must not become one.
_CONTROL = re.compile("<[|｜].+[|｜]>")
_CONTEXT_TOKENS = 8


class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that can also encode the text of a special token as ordinary text."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""

    @property
    def specials(self) -> frozenset[str]:
        """Texts of the control tokens that `encode` recognises."""

    @property
    def bos(self) -> str:
        """Text of the token that begins a sequence, or the empty string."""

    @property
    def eos(self) -> str:
        """Text of the token that ends a turn."""

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text` with no special token recognised in it."""


def without_surrogates(text: str) -> str:
    """`text` with each lone surrogate (legal in JSON, not in UTF-8) replaced by U+FFFD."""
    return _SURROGATE.sub("�", text)


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, then `<|im_start|>` 256, `<|im_end|>` 257 and `<|endoftext|>` 258."""

    SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    START, END, END_OF_TEXT = 256, 257, 258

    def __init__(self) -> None:
        self._split = re.compile("(" + "|".join(re.escape(text) for text in self.SPECIALS) + ")")

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return 256 + len(self.SPECIALS)

    @property
    def eos_ids(self) -> frozenset[int]:
        """`<|im_end|>` and `<|endoftext|>`."""
        return frozenset({self.END, self.END_OF_TEXT})

    @property
    def specials(self) -> frozenset[str]:
        """The three ChatML control tokens."""
        return frozenset(self.SPECIALS)

    @property
    def bos(self) -> str:
        """Nothing: a conversation begins with its first turn."""
        return ""

    @property
    def eos(self) -> str:
        """What ends a turn."""
        return self.SPECIALS[1]

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised."""
        ids: list[int] = []
        for piece in self._split.split(text):
            ids.extend([256 + self.SPECIALS.index(piece)] if piece in self.SPECIALS else self.encode_plain(piece))
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """The UTF-8 bytes of `text`."""
        return list(without_surrogates(text).encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; U+FFFD for incomplete UTF-8. Raises ValueError for an id outside the vocabulary."""
        try:
            return bytes(ids).decode(errors="replace")
        except ValueError:  # an id that is no byte
            out = bytearray()
        for token in ids:
            if 0 <= token < 256:
                out.append(token)
            elif 256 <= token < self.vocab_size:
                out += self.SPECIALS[token - 256].encode()
            else:
                raise ValueError(f"id {token} is outside the vocabulary of {self.vocab_size}")
        return out.decode(errors="replace")


class HubTokenizer:
    """A fast tokenizer as model folders carry it."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, eos_ids: frozenset[int], bos: str, eos: str) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().values()
        unmarked = {token.content for token in added if not token.special and _CONTROL.fullmatch(token.content)}
        self._specials = frozenset({token.content for token in added if token.special} | unmarked)
        self._plain = _recognising_none(tokenizer, unmarked)
        self._eos_ids = eos_ids
        self._bos = bos
        self._eos = eos

    @classmethod
    def from_folder(cls, path: Path) -> HubTokenizer:
        """Read `tokenizer.json` and the end-of-turn ids that the folder's configuration files name.

        Raises: ConfigError where the file is missing or broken, or where no end-of-turn id is named.
        """
        file = Path(path) / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{file} does not exist.", hint="Point the model path at a folder with a tokenizer.json.")
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for a file that it cannot read
            raise ConfigError(f"{file} is not a tokenizer file: {error}") from error
        settings = _read_json(Path(path) / "tokenizer_config.json")
        bos, eos = _token_text(settings.get("bos_token")), _token_text(settings.get("eos_token"))
        ids: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            value = _read_json(Path(path) / name).get("eos_token_id")
            ids.update(value if isinstance(value, list) else [value] if isinstance(value, int) else [])
        if eos and (eos_id := tokenizer.token_to_id(eos)) is not None:
            ids.add(eos_id)
        if not ids:
            raise ConfigError(
                f"No file in {path} says which token ends a turn.",
                hint="Set eos_token_id in generation_config.json or eos_token in tokenizer_config.json.",
            )
        return cls(tokenizer, eos_ids=frozenset(ids), bos=bos, eos=eos or tokenizer.id_to_token(min(ids)) or "")

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a completion."""
        return self._eos_ids

    @property
    def specials(self) -> frozenset[str]:
        """Texts of the control tokens."""
        return self._specials

    @property
    def bos(self) -> str:
        """Text of the token that begins a sequence, or the empty string."""
        return self._bos

    @property
    def eos(self) -> str:
        """Text of the token that ends a turn."""
        return self._eos

    @property
    def json(self) -> str:
        """The tokenizer as a `tokenizer.json` holds it."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised and none added."""
        return list(self._tokenizer.encode(without_surrogates(text), add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text` with no special token recognised in it."""
        return list(self._plain.encode(without_surrogates(text), add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


class IncrementalDecoder:
    """Ids in, text out, as early as the text is certain.

    Decodes only a short window: the tokens before it give a decoder that looks at its neighbours the left context it
    needs. The last characters that decode to U+FFFD may be one in the making and are held back.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._window: list[int] = []
        self._emitted = 0

    def feed(self, ids: Sequence[int]) -> str:
        """Text that has become certain with `ids`."""
        self._window.extend(ids)
        text = self._window_text()
        open_end = len(text) - len(text.rstrip("�"))
        certain = text[: len(text) - min(open_end, _LONGEST_OPEN_END)]
        out = certain[self._emitted :]
        self._emitted = max(self._emitted, len(certain))
        if not open_end:
            self._context, self._window, self._emitted = self._window[-_CONTEXT_TOKENS:], [], 0
        return out

    def finish(self) -> str:
        """The text still held back, with U+FFFD for what stayed incomplete."""
        out = self._window_text()[self._emitted :]
        self._context, self._window, self._emitted = [], [], 0
        return out

    def _window_text(self) -> str:
        if not self._window:
            return ""
        before = self._tokenizer.decode(self._context) if self._context else ""
        return self._tokenizer.decode(self._context + self._window)[len(before) :]


def _recognising_none(tokenizer: tokenizers.Tokenizer, unmarked: Set[str]) -> tokenizers.Tokenizer:
    """The same tokenizer, to which neither a special token nor one of `unmarked` is more than its text."""
    source = tokenizer.to_str()
    if unmarked:  # the library can ignore special tokens only, so they are made so
        settings = json.loads(source)
        for token in settings["added_tokens"]:
            token["special"] = token["special"] or token["content"] in unmarked
        source = json.dumps(settings)
    plain = tokenizers.Tokenizer.from_str(source)
    plain.encode_special_tokens = True
    return plain


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} does not hold a JSON object.")
    return value


def _token_text(value: object) -> str:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""

"""Constraints on an answer, compiled: which tokens may come next.

The grammars themselves are llguidance's (Earley parsing over a lexer of regex derivatives, masks by walking the
vocabulary's trie). It was chosen because it needs neither torch nor a service, reads the tokenizer file as it is,
covers most of JSON schema, and bounds every step's work by itself.

Invariants: a stop id is allowed exactly where the grammar may end; a schema is compiled before anything is sampled, off
the event loop, within `COMPILE_S` and `MOST_CHARS`. A compiled grammar is kept and copied for each sequence. It must
not know torch, batches or what the constraint is for.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from practicum.errors import EngineError, MissingExtra, RequestError, Unsupported
from practicum.renderers import ByteTokenizer, ChatTokenizer, HubTokenizer
from practicum.renderers.call_grammar import WHITESPACE
from practicum.types.tokens import Constraint

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer

MOST_CHARS = 262_144
COMPILE_S = 5.0
# The library builds a state for each remainder of a `multipleOf`, without a limit of its own.
MOST_REMAINDERS = 10_000
_KEPT = 64

_MULTIPLE = re.compile(r'"multipleOf"\s*:\s*(-?\d{1,400}(?:\.\d{1,400})?(?:[eE][-+]?\d{1,3})?)')
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")


class Matcher:
    """Follows one sequence. `stop_ids` end it; `vocabulary` is the width V of the logits."""

    def __init__(self, matcher: LLMatcher, *, stop_ids: Collection[int], eos_ids: Collection[int], vocabulary: int):
        self._matcher = matcher
        self._stop_ids = [token for token in stop_ids if token < vocabulary]
        self._eos_ids = [token for token in eos_ids if token < vocabulary]
        self._vocabulary = vocabulary

    @property
    def finished(self) -> bool:
        """Whether nothing but a stop can follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    @property
    def may_end(self) -> bool:
        """Whether what was sampled so far is a whole match."""
        return bool(self._matcher.is_accepting())

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[V]: true for each token that may come next. Raises EngineError where none may, or a limit was hit."""
        import numpy as np

        mask = np.zeros(self._vocabulary, dtype=np.bool_)
        if not self.finished:
            self._check()
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            self._check()
            mask = np.unpackbits(packed, count=self._vocabulary, bitorder="little").view(np.bool_)
            mask[self._eos_ids] = False
        if self.may_end:
            mask[self._stop_ids] = True
        if not mask.any():
            raise EngineError("no token of the vocabulary can continue the answer under its constraint.")
        return mask

    def matches(self, ids: Sequence[int]) -> bool:
        """Whether these ids are a whole match. The matcher is of no use afterwards."""
        return int(self._matcher.try_consume_tokens(list(ids))) == len(ids) and self.may_end

    def advance(self, token: int) -> None:
        """Take a sampled token that is no stop. One that was not allowed shows at the next `allowed`."""
        self._matcher.consume_token(token)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"the answer's constraint could not be followed: {_reason(self._matcher)}.")


class Constraints:
    """Compiles constraints for one tokenizer. Thread-safe.

    Args:
        tokenizer: of the model; None for an engine that was given none, which then refuses every constraint.
        vocabulary: V, the width of the logits.
    """

    def __init__(self, tokenizer: ChatTokenizer | None, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._trie: LLTokenizer | None = None
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, "practicum-constraint")  # starts its thread with the first constraint

    def warm(self) -> None:
        """Read the vocabulary now, where that is possible: it takes a second for a large one, and stops all threads."""
        with suppress(MissingExtra, Unsupported):
            self._trie_of(_library())

    async def prepared(self, constraint: Constraint | None, stop_ids: Collection[int]) -> Matcher | None:
        """`matcher`, with the compiling done on a thread and within `COMPILE_S`; None where there is no constraint."""
        if constraint is None:
            return None
        if constraint not in self._compiled:
            try:
                loop = asyncio.get_running_loop()
                await asyncio.wait_for(loop.run_in_executor(self._worker, self._template, constraint), COMPILE_S)
            except TimeoutError as error:
                raise RequestError(
                    f"`{constraint.source}` took longer than {COMPILE_S:g} s to compile.",
                    hint="Send a simpler one.",
                    param=constraint.source,
                ) from error
        return self.matcher(constraint, stop_ids)

    def matcher(self, constraint: Constraint, stop_ids: Collection[int]) -> Matcher:
        """A matcher at the start of an answer.

        Raises: RequestError for a constraint that is too large, is wrong or can never be met; MissingExtra; Unsupported
        where the tokenizer cannot be read.
        """
        matcher = self._template(constraint).deep_copy()
        eos_ids = self._tokenizer.eos_ids if self._tokenizer is not None else ()
        return Matcher(matcher, stop_ids=stop_ids, eos_ids=eos_ids, vocabulary=self._vocabulary)

    def close(self) -> None:
        """Let the thread end."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _template(self, constraint: Constraint) -> LLMatcher:
        with self._lock:
            if constraint in self._compiled:
                self._compiled.move_to_end(constraint)
                return self._compiled[constraint]
        made: LLMatcher = self._compile(constraint)
        with self._lock:
            self._compiled[constraint] = made
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return made

    def _compile(self, constraint: Constraint) -> Any:
        if len(constraint.text) > MOST_CHARS:
            raise RequestError(
                f"`{constraint.source}` has {len(constraint.text)} characters; the most is {MOST_CHARS}.",
                hint="Send a smaller one.",
                param=constraint.source,
            )
        if _remainders(constraint.text) > MOST_REMAINDERS:
            raise RequestError(
                f"`{constraint.source}` cannot be enforced: its `multipleOf` is too long a number, alone or together.",
                hint=f"Their common multiple may be {MOST_REMAINDERS} at most, without its trailing zeros.",
                param=constraint.source,
            )
        library = _library()
        trie = self._trie_of(library)
        try:
            grammar = _grammar(library.LLMatcher, constraint)
            limits = library.LLParserLimits(verbose_errors=False)
            made = library.LLMatcher(trie, grammar, log_level=0, limits=limits)
            made.compute_bitmask()  # builds what every first mask needs, and finds what can never be met
            reason = _reason(made)
        except ValueError as error:  # JSON or text that the library cannot read at all
            reason = str(error)
        if reason:
            raise RequestError(f"`{constraint.source}` cannot be enforced: {reason}.", param=constraint.source)
        return made

    def _trie_of(self, library: Any) -> LLTokenizer:
        with self._lock:
            if self._trie is None:
                self._trie = _trie(library, self._tokenizer, self._vocabulary)
            return self._trie


def _reason(matcher: LLMatcher) -> str:
    """What is wrong, in one line; empty where nothing is."""
    reason = " ".join(matcher.get_error().replace("<non-verbose/>", "").split()).removesuffix(".")
    return "nothing can match it" if reason.startswith("NoExtension") else reason[:300]


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtra(
            "Constrained answers need llguidance, which is not installed.",
            hint="Run: pip install llguidance (it is part of practicum[embedded]).",
        ) from error
    return llguidance


def _grammar(matcher: type[LLMatcher], constraint: Constraint) -> str:
    if constraint.kind == "regex":
        return matcher.grammar_from_regex(constraint.text)
    if constraint.kind == "grammar":
        return matcher.grammar_from_lark(constraint.text)
    schema = constraint.text if constraint.kind == "json_schema" else '{"type": "object"}'
    options = {"whitespace_pattern": WHITESPACE, "lenient": not constraint.strict}
    return matcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]


def _remainders(text: str) -> int:
    """Remainders of all that the schemas in `text` want to be multiples of: their common multiple, as digits."""
    plain = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    numbers = {Decimal(found[1]).normalize() for found in _MULTIPLE.finditer(plain)}
    if any(abs(number.adjusted()) > 100 for number in numbers):
        return MOST_REMAINDERS + 1
    lowest = min((int(number.as_tuple().exponent) for number in numbers), default=0)
    common = math.lcm(*(max(1, abs(int(number.scaleb(-lowest)))) for number in numbers))
    return int(str(common).rstrip("0"))


def _trie(library: Any, tokenizer: ChatTokenizer | None, vocabulary: int) -> LLTokenizer:
    if isinstance(tokenizer, HubTokenizer):
        width = max(vocabulary, tokenizer.vocab_size)
        made = library.LLTokenizer(tokenizer.json, n_vocab=width, eos_token=sorted(tokenizer.eos_ids))
    elif isinstance(tokenizer, ByteTokenizer):
        made = library.LLTokenizer(library.TokenizerWrapper(_Bytes(tokenizer)), eos_token=sorted(tokenizer.eos_ids))
    else:
        raise Unsupported("This engine cannot enforce a constraint: it knows no tokenizer that the library reads.")
    return made  # type: ignore[no-any-return]


class _Bytes:
    """A byte tokenizer as the library wants it."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self.eos_token_id, self.bos_token_id = tokenizer.END, None
        self.tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in tokenizer.SPECIALS]
        self.special_token_ids = list(range(256, tokenizer.vocab_size))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)

"""From a request's bytes to ids ready to sample: parse, find the session and the parent, render.

Synchronous: it parses, renders and reads the store, so it runs on a thread and the event loop stays free.

Invariants: where a parent is found, the prompt begins with the parent's served ids; ids that a caller sends are the
prompt, unchanged. It must not know ASGI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from practicum.dialects.dialect import Dialect
from practicum.dialects.registry import recorded_request
from practicum.dialects.request import ChatRequest
from practicum.episodes.link import Earlier, Link, Parent, call_kind, find_parent, link, raw_link
from practicum.episodes.matching import prefix_hashes
from practicum.errors import ContextOverflow, RequestError
from practicum.gateway.model_names import ModelNames
from practicum.gateway.sessions import Session, SessionOwners, inferred_session, named_session
from practicum.gateway.swap import Policies
from practicum.renderers import CannotExtend, Renderer
from practicum.types.calls import CallKind, ModelCall
from practicum.types.ids import new_id
from practicum.types.principals import Principal


class CallReads(Protocol):
    """What the gateway reads of a store."""

    def find_by_history(self, principal: str, history_hash: str) -> list[ModelCall]:
        """A principal's calls after which the conversation has this hash, newest first."""

    def last_call(self, session_id: str) -> ModelCall | None:
        """The newest call of a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One request as it arrived: its wire format, the body's bytes, the URL's parameters (`path`) and session,
    lower-case headers, who asks.
    """

    dialect: Dialect
    raw: bytes
    path: Mapping[str, str]
    headers: Mapping[str, str]
    url_session: str | None
    principal: Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request ready to sample. `pinned` is the version asked for, None for the live one; `prompt_ids: [P]`."""

    dialect: Dialect
    request: ChatRequest
    session: Session
    link: Link
    kind: CallKind
    pinned: int | None
    prompt_ids: tuple[int, ...]
    max_tokens: int
    episode_id: str


class Preparer:
    """Prepares requests.

    Args:
        store: earlier calls.
        policies: released versions, for names such as `practicum@3`.
        renderer: the model's template.
        names: model names.
        context_length: most tokens a prompt and its completion may have together.
        default_max_tokens: most tokens of an answer where the request does not say.
    """

    def __init__(
        self,
        store: CallReads,
        policies: Policies,
        renderer: Renderer,
        names: ModelNames,
        *,
        context_length: int,
        default_max_tokens: int,
    ) -> None:
        self._store = store
        self._policies = policies
        self._renderer = renderer
        self._names = names
        self._owners = SessionOwners(store.last_call)
        self._context_length = context_length
        self._default_max_tokens = default_max_tokens

    def prepare(self, incoming: Incoming) -> Prepared:
        """Raises: RequestError, NotFound for the model, ContextOverflow, StoreError."""
        request, pinned = self._parsed(incoming)
        named = named_session(incoming.url_session, incoming.headers)
        who = incoming.principal.name
        if named is not None:
            named = Session(session_id=self._owners.claim(named.session_id, who), source=named.source)
        hashes = prefix_hashes(request.messages, request.tools)
        parent = find_parent(
            request.messages,
            request.tools,
            lambda history: self._store.find_by_history(who, history),
            session_id=named.session_id if named else None,
            hashes=hashes,
        )
        session = named or inferred_session(parent.call if parent else None)
        earlier = None if session.source == "new" else self._store.last_call(session.session_id)
        joined, prompt_ids = self._ids(request, parent, _earlier(earlier), hashes)
        room = self._room(len(prompt_ids))
        wanted = request.max_tokens or self._default_max_tokens
        continues = joined.parent is not None and joined.fork_reason is None
        return Prepared(
            dialect=incoming.dialect,
            request=request,
            session=session,
            link=joined,
            kind=call_kind(earlier, joined.prompt_hash, request.max_tokens),
            pinned=pinned,
            prompt_ids=tuple(prompt_ids),
            max_tokens=min(wanted, room),
            episode_id=joined.parent.call.episode_id if continues and joined.parent else new_id("ep"),
        )

    def count(self, incoming: Incoming) -> int:
        """Tokens of the prompt that this request would be answered from. Raises RequestError, NotFound, StoreError."""
        request, _ = self._parsed(incoming)
        find = self._store.find_by_history
        who = incoming.principal.name
        parent = find_parent(request.messages, request.tools, lambda history: find(who, history))
        return len(self._ids(request, parent, None)[1])

    def _parsed(self, incoming: Incoming) -> tuple[ChatRequest, int | None]:
        """The request, and the version it names, None for the live one."""
        request = incoming.dialect.parse(incoming.raw, incoming.path)
        if request.model in self._names.live_names:
            return request, None
        return request, self._names.resolve(request.model, self._policies.list())

    def _ids(
        self,
        request: ChatRequest,
        parent: Parent | None,
        earlier: Earlier | None,
        hashes: Sequence[str] | None = None,
    ) -> tuple[Link, Sequence[int]]:
        if request.prompt is not None:
            ids = self._raw_ids(request.prompt)
            return raw_link(ids), ids
        joined = link(request.messages, request.tools, parent, earlier, hashes=hashes)
        if parent is None:
            return joined, self._renderer.render(request.messages, request.tools)
        served = parent.call.prompt_ids + parent.call.completion_ids
        before = request.messages[: len(request.messages) - len(parent.rest) - 1]
        last = served[-1]
        stop_id = last if last in self._renderer.tokenizer.eos_ids else None
        try:
            tail = self._renderer.tail(before, parent.rest, request.tools, stop_id=stop_id)
        except CannotExtend:
            forked = Link(parent=None, fork_reason="template_cannot_extend", prompt_hash=joined.prompt_hash)
            return forked, self._renderer.render(request.messages, request.tools)
        return joined, [*served, *tail]

    def _raw_ids(self, prompt: str | tuple[int, ...]) -> Sequence[int]:
        """A raw prompt's ids: text as plain text, ids as they are. Raises RequestError naming an id that is none."""
        tokenizer = self._renderer.tokenizer
        ids = tokenizer.encode_plain(prompt) if isinstance(prompt, str) else prompt
        if not ids:
            raise RequestError("`prompt` is empty: the model needs at least one token to begin from.", param="prompt")
        if not isinstance(prompt, str):
            size = tokenizer.vocab_size
            wrong = next((index for index, token in enumerate(ids) if not 0 <= token < size), None)
            if wrong is not None:
                raise RequestError(
                    f"`prompt.{wrong}`: this model's token ids are 0 to {size - 1}.",
                    param=f"prompt.{wrong}",
                    code="invalid_token_id",
                )
        return ids

    def _room(self, prompt_tokens: int) -> int:
        room = self._context_length - prompt_tokens
        if room <= 0:
            raise ContextOverflow(
                f"The prompt has {prompt_tokens} tokens; this model's maximum context length is "
                f"{self._context_length} tokens.",
                hint="Shorten or compact the conversation.",
                param="messages",
            )
        return room


def _earlier(call: ModelCall | None) -> Earlier | None:
    """The session's last call with its conversation, read back from the recorded body."""
    if call is None:
        return None
    try:
        request = recorded_request(call.dialect, call.request)
    except RequestError:  # recorded by a release that read more than this one does
        return None
    return Earlier(call=call, messages=request.messages, tools=request.tools)

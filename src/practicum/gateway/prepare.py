"""From a request's bytes to ids ready to sample: parse, find the session and the parent, render.

Synchronous: it parses, renders and reads the store, so it runs on a thread and the event loop stays free.

Invariants: where a parent is found, the prompt begins with the parent's served ids; ids that a caller sends are the
prompt, unchanged. It must not know ASGI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from practicum.dialects.dialect import Dialect
from practicum.dialects.registry import recorded_request
from practicum.dialects.request import ChatRequest
from practicum.episodes.link import Earlier, Link, Parent, call_kind, find_parent, link, raw_link
from practicum.episodes.matching import ReasoningChange, ReasoningRule, has_reasoning, prefix_hashes, reasoning_change
from practicum.episodes.side_calls import SideCallRule, harness_of, side_call
from practicum.errors import ContextOverflow, RequestError, Unsupported
from practicum.gateway.answer import recorded_message
from practicum.gateway.inference import Inference
from practicum.gateway.model_names import ModelNames
from practicum.gateway.sessions import Session, SessionOwners, named_session, new_session
from practicum.gateway.swap import Policies
from practicum.renderers import CannotExtend, Renderer
from practicum.types.calls import Asked, CallKind, ModelCall
from practicum.types.ids import new_id
from practicum.types.messages import Message
from practicum.types.principals import Principal


class CallReads(Protocol):
    """What the gateway reads of a store."""

    def find_by_history(self, principal: str, history_hash: str, session_id: str) -> list[ModelCall]:
        """A principal's calls after which the conversation has this hash, the session's first, then the newest."""

    def last_asked(self, principal: str, prompt_hash: str, session_id: str | None) -> Asked | None:
        """Who of a principal's was asked this prompt last, in a session if it is named."""

    def last_call(self, session_id: str) -> ModelCall | None:
        """The newest call of a session."""

    def last_turn(self, session_id: str, agent_id: str | None) -> ModelCall | None:
        """The newest call of one of a session's agents that is no side call."""


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
    """A request ready to sample. `pinned` is the version asked for, None for the live one; `prompt_ids: [P]`.

    `harness` is who sent it, as far as its headers tell; `kind_reason` names the rule behind `kind`.
    """

    dialect: Dialect
    request: ChatRequest
    session: Session
    link: Link
    kind: CallKind
    kind_reason: str | None
    harness: str
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
        dropped_reasoning: what an answer that is replayed without its reasoning means.
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
        dropped_reasoning: ReasoningRule = "infer",
    ) -> None:
        self._store = store
        self._policies = policies
        self._renderer = renderer
        self._names = names
        self._owners = SessionOwners(store.last_call)
        self._inference = Inference()
        self._context_length = context_length
        self._default_max_tokens = default_max_tokens
        self._dropped_reasoning: ReasoningRule = dropped_reasoning

    def prepare(self, incoming: Incoming) -> Prepared:
        """Raises: RequestError, NotFound for the model, ContextOverflow, Unsupported, StoreError."""
        request, pinned = self._parsed(incoming)
        named = self._named(incoming, request)
        hashes = prefix_hashes(request.messages, request.tools, request.options)
        record = _Record(request.messages, self._renderer, self._dropped_reasoning)
        parent = self._parent(request, hashes, incoming.principal.name, record, named)
        rule = side_call(incoming.headers, request)
        session = self._session(incoming.principal.name, request, hashes, named, parent)
        side = rule is not None and rule.kind == "auxiliary"
        self._inference.saw(incoming.principal.name, session, request.messages, side_call=side)
        earlier = None if session.source == "new" else self._store.last_turn(session.session_id, session.agent_id)
        joined, prompt_ids = self._ids(request, hashes, parent, record.earlier(earlier), record.changed)
        request = self._constrained(request, prompt_ids)
        room = self._room(len(prompt_ids))
        wanted = request.max_tokens or self._default_max_tokens
        kind, kind_reason = _kind(rule, joined, earlier)
        continues = joined.parent is not None and joined.fork_reason is None
        return Prepared(
            dialect=incoming.dialect,
            request=request,
            session=session,
            link=joined,
            kind=kind,
            kind_reason=kind_reason,
            harness=harness_of(incoming.headers),
            pinned=pinned,
            prompt_ids=tuple(prompt_ids),
            max_tokens=min(wanted, room),
            episode_id=joined.parent.call.episode_id if continues and joined.parent else new_id("ep"),
        )

    def answered(self, principal: str, session: Session, message: Message) -> None:
        """Note the tool calls of an answer, by which later requests may be known."""
        if message.tool_calls:
            self._inference.served(principal, session, message.tool_calls)

    def undelivered(self, principal: str, prompt_hash: str) -> None:
        """Note that a prompt's answer did not arrive: it may be asked again."""
        self._inference.undelivered(principal, prompt_hash)

    def count(self, incoming: Incoming) -> int:
        """Tokens of the prompt that this request would be answered from. Raises RequestError, NotFound, StoreError."""
        request, _ = self._parsed(incoming)
        hashes = prefix_hashes(request.messages, request.tools, request.options)
        record = _Record(request.messages, self._renderer, self._dropped_reasoning)
        parent = self._parent(request, hashes, incoming.principal.name, record, None)
        return len(self._ids(request, hashes, parent, None, record.changed)[1])

    def _parent(
        self, request: ChatRequest, hashes: Sequence[str], who: str, record: _Record, named: Session | None
    ) -> Parent | None:
        return find_parent(
            request.messages,
            request.tools,
            lambda history: self._store.find_by_history(who, history, named.session_id if named else ""),
            session_id=named.session_id if named else None,
            agent_id=named.agent_id if named else None,
            hashes=hashes,
            accept=record.keeps_reasoning,
        )

    def _named(self, incoming: Incoming, request: ChatRequest) -> Session | None:
        who = incoming.principal
        named = named_session(incoming.url_session, incoming.headers, request.body, bound=who.session_id)
        if named is None:
            return None
        return replace(named, session_id=self._owners.claim(self._owners.root(named, who.name), who.name))

    def _session(
        self, who: str, request: ChatRequest, hashes: Sequence[str], named: Session | None, parent: Parent | None
    ) -> Session:
        """The session and the agent: as named, as the parent's, as the content tells, or new ones."""
        call = parent.call if parent is not None else None
        if named is not None and named.agent_id is not None:
            return named
        if named is not None and call is not None:
            return replace(named, agent_id=call.agent_id) if call.session_id == named.session_id else named
        if call is not None:
            return Session(session_id=call.session_id, source="inferred", by="history", agent_id=call.agent_id)
        begins = bool(request.messages) and not any(message.role == "assistant" for message in request.messages)
        same: Asked | None = None
        if begins and (named is not None or self._inference.may_repeat(who, hashes[-1])):
            same = self._store.last_asked(who, hashes[-1], named.session_id if named else None)
        if named is not None:
            return self._inference.agent(who, named, request.messages, same) if begins else named
        return self._inference.find(who, request.messages, same) or new_session()

    def _parsed(self, incoming: Incoming) -> tuple[ChatRequest, int | None]:
        """The request, and the version it names, None for the live one."""
        request = _with_known_options(incoming.dialect.parse(incoming.raw, incoming.path), self._renderer)
        if request.model in self._names.live_names:
            return request, None
        rollout = incoming.principal.session_id is not None
        return request, self._names.resolve(request.model, self._policies.list(), candidates=rollout)

    def _constrained(self, request: ChatRequest, prompt_ids: Sequence[int]) -> ChatRequest:
        """With what a demanded call makes of the constraint. A demanded JSON answer may still be calls instead.

        Raises: Unsupported where the answer would begin inside the model's reasoning, or cannot be forced.
        """
        asked, tools = request.params.constraint, request.callable_tools
        source = request.must_call or (asked.source if asked else None)
        if source is None:
            return request
        in_call_form = request.must_call is not None and self._renderer.markup.kind == "harmony"
        if request.prompt is None and not in_call_form and self._renderer.answer_opening(prompt_ids):
            raise Unsupported(
                f"`{source}` cannot be enforced behind this model's reasoning.",
                hint="Switch the reasoning off for this request, or ask for the format in the messages.",
                param=source,
            )
        answer = asked if asked and asked.kind in ("json_schema", "json_object") else None
        if request.must_call is None and not (answer and tools):
            return request
        constraint = self._renderer.call_constraint(
            tools,
            several=request.parallel_tools,
            answer=None if request.must_call is not None else answer,
            source=source,
        )
        return replace(request, params=replace(request.params, constraint=constraint))

    def _ids(
        self,
        request: ChatRequest,
        hashes: Sequence[str],
        parent: Parent | None,
        earlier: Earlier | None,
        changed: ReasoningChange | None,
    ) -> tuple[Link, Sequence[int]]:
        if request.prompt is not None:
            ids = self._raw_ids(request.prompt)
            return raw_link(ids), ids
        options = request.options
        joined = link(request.messages, request.tools, parent, earlier, options=options, changed=changed, hashes=hashes)
        if parent is None:
            return joined, self._renderer.render(request.messages, request.tools, options)
        served = parent.call.prompt_ids + parent.call.completion_ids
        before = request.messages[: len(request.messages) - len(parent.rest) - 1]
        last = served[-1]
        stop_id = last if last in self._renderer.stop_ids else None
        try:
            answer = request.messages[len(before)]
            tail = self._renderer.tail(before, parent.rest, request.tools, options, stop_id=stop_id, answer=answer)
        except CannotExtend:
            forked = Link(parent=None, fork_reason="template_cannot_extend", prompt_hash=joined.prompt_hash)
            return forked, self._renderer.render(request.messages, request.tools, options)
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


class _Record:
    """What calls on record asked and answered, read back at most once for one request with these messages.

    `changed` says what the caller did to the reasoning of the first call that would have been the parent otherwise.
    """

    def __init__(self, messages: Sequence[Message], renderer: Renderer, rule: ReasoningRule) -> None:
        self.changed: ReasoningChange | None = None
        self._returned = has_reasoning(messages)
        self._renderer = renderer
        self._rule: ReasoningRule = rule
        self._changed_at = 0
        self._requests: dict[str, ChatRequest | None] = {}

    def earlier(self, call: ModelCall | None) -> Earlier | None:
        """A call with its conversation, None where there is none that this release can read."""
        request = self._request(call) if call is not None else None
        if call is None or request is None:
            return None
        return Earlier(call=call, messages=request.messages, tools=request.tools, options=request.options)

    def keeps_reasoning(self, call: ModelCall, replayed: Sequence[Message]) -> bool:
        """Whether the replayed conversation has the reasoning that the call had, as far as the rule asks for it."""
        request = self._request(call)
        if request is None:
            return True
        answer = recorded_message(call, request, self._renderer)
        if request.reasoning_shown == "hidden":
            answer = replace(answer, reasoning="")
        returned = self._returned or self.changed is not None
        change = reasoning_change(replayed, (*request.messages, answer), self._rule, returned=returned)
        if self.changed is None and change is not None:
            self.changed, self._changed_at = change, len(replayed)
        elif change is None and len(replayed) == self._changed_at:  # a sibling with the same text was the one
            self.changed = None
        return change is None

    def _request(self, call: ModelCall) -> ChatRequest | None:
        if call.call_id not in self._requests:
            try:
                request = _with_known_options(recorded_request(call.dialect, call.request), self._renderer)
            except RequestError:  # recorded by a release that read more than this one does
                request = None
            self._requests[call.call_id] = request
        return self._requests[call.call_id]


def _with_known_options(request: ChatRequest, renderer: Renderer) -> ChatRequest:
    """Options that the template does not read are no difference between two conversations."""
    known = renderer.known(request.options)
    return request if known == request.options else replace(request, options=known)


def _kind(rule: SideCallRule | None, joined: Link, earlier: ModelCall | None) -> tuple[CallKind, str | None]:
    """What the table of side calls says, then the parent, then whether the prompt was asked before."""
    if rule is not None and rule.kind == "auxiliary":
        return rule.kind, rule.name
    parent = joined.parent.call if joined.parent is not None and joined.fork_reason is None else None
    if parent is not None and parent.kind == "auxiliary":
        return "auxiliary", "continues_side_call"
    kind, reason = call_kind(earlier, joined.prompt_hash)
    if rule is not None and kind == "agent":
        return rule.kind, rule.name
    return kind, reason

"""Canonical messages to token ids and sampled text back to messages. Knows no wire format and no model weights."""

from practicum.renderers.chat_template import CannotExtend, Renderer
from practicum.renderers.markup import CallMarkup
from practicum.renderers.preserving import Finding, prefix_findings
from practicum.renderers.spans import Spanned, render_with_spans
from practicum.renderers.tokenizer import ByteTokenizer, ChatTokenizer, HubTokenizer, IncrementalDecoder
from practicum.renderers.tool_calls import ToolCallParser

__all__ = [
    "ByteTokenizer",
    "CallMarkup",
    "CannotExtend",
    "ChatTokenizer",
    "Finding",
    "HubTokenizer",
    "IncrementalDecoder",
    "Renderer",
    "Spanned",
    "ToolCallParser",
    "prefix_findings",
    "render_with_spans",
]

"""Canonical messages to token ids and sampled text back to messages. Knows no wire format and no model weights."""

from practicum.renderers.chat_template import CannotExtend, Renderer
from practicum.renderers.tokenizer import ByteTokenizer, ChatTokenizer, HubTokenizer, IncrementalDecoder
from practicum.renderers.tool_calls import ToolCallParser

__all__ = [
    "ByteTokenizer",
    "CannotExtend",
    "ChatTokenizer",
    "HubTokenizer",
    "IncrementalDecoder",
    "Renderer",
    "ToolCallParser",
]

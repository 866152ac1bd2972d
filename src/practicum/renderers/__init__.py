"""Canonical messages to token ids and sampled text back to messages. Knows no wire format and no model weights."""

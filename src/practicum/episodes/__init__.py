"""Stored model calls to append-only episodes and training rows."""

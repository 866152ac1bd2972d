"""The loop as an explicit, resumable state machine: it decides when, never how."""

"""Thin verbs: they read options, wire the parts together, and print. No logic lives here."""

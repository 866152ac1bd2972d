"""Isolated execution for harnesses, tools and graders."""

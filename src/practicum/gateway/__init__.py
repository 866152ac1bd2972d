"""The ASGI application that an agent's harness talks to. It never imports torch."""

from practicum.gateway.app import create_app
from practicum.gateway.auth import authenticate, require
from practicum.gateway.timing import Timing

__all__ = ["Timing", "authenticate", "create_app", "require"]

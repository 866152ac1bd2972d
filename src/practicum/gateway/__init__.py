"""The ASGI application that an agent's harness talks to. It never imports torch."""

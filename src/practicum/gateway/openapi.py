"""The OpenAPI document of the routes that are ours: feedback and rollouts. Providers document their own.

FastAPI writes it from the routes; here it learns how our errors look and where the key goes. It must not know what the
routes do.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from practicum import __version__
from practicum.dialects.problem import MEDIA_TYPE

OPENAPI_PATH = "/openapi.json"
_TEXT = {"type": "string"}
_PROBLEM = {
    "title": "Problem",
    "description": "Every error (RFC 9457). `code` is stable, `param` names the field at fault, `hint` the way out.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "request_id"],
    "properties": {
        **dict.fromkeys(("type", "title", "detail", "code", "request_id", "hint", "param"), _TEXT),
        "status": {"type": "integer"},
    },
}
_ERROR = {
    "description": "An error; nothing has been done.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_METHODS = frozenset({"get", "post", "put", "patch", "delete"})


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    document = get_openapi(title="Practicum", version=__version__, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors never leave
        schemas.pop(unused, None)
    schemas["Problem"] = _PROBLEM
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    for path in document["paths"].values():
        for method in _METHODS & set(path):
            responses = path[method]["responses"]
            responses.pop("422", None)
            responses["default"] = _ERROR
    return document

"""Read-only views of what a learning run did: records arranged, never decided.

`build` makes a `Report` of one run; `show` prints it, `render_json` and `render_html` turn it into text, `write_html`
writes the page. Nothing here imports torch, and nothing writes to the store.
"""

from practicum.dashboard.page import render_html, write_html
from practicum.dashboard.records import Report
from practicum.dashboard.report import build
from practicum.dashboard.terminal import render_json, show

__all__ = ["Report", "build", "render_html", "render_json", "show", "write_html"]

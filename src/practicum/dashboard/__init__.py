"""Read-only views of what a learning run did: records arranged, never decided.

`build` makes a `Report` of one run; `show` prints it, `render_json` and `render_html` turn it into text, `write_html`
writes the page. `show_harnesses` and `harnesses_json` print what became of each harness's calls. Nothing here imports
torch, and nothing writes to the store.
"""

from practicum.dashboard.harnesses import harnesses_json, show_harnesses
from practicum.dashboard.page import render_html, write_html
from practicum.dashboard.records import Report
from practicum.dashboard.report import build
from practicum.dashboard.terminal import render_json, show

__all__ = [
    "Report",
    "build",
    "harnesses_json",
    "render_html",
    "render_json",
    "show",
    "show_harnesses",
    "write_html",
]

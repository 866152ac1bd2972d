"""Words, symbols and numbers that every view shares, and how hostile text is made inert before it is shown.

Model output and comments are data. What a terminal or a browser would act on without showing it (control, bidi and
other invisible characters, lone surrogates) is replaced by a visible stand-in; the text is otherwise left as it is.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from practicum.dashboard.records import Fate, Item, PairKind, ReportState
from practicum.types.manifests import EntryUse

# Word and symbol for each state; a colour is a view's business.
STATES: Mapping[ReportState, tuple[str, str]] = {
    "promoted": ("✔", "promoted"),
    "refused": ("✖", "refused"),
    "stopped": ("■", "stopped"),
    "trained": ("✓", "trained, not released"),
    "unfinished": ("…", "unfinished"),
}
PAIRS: Mapping[PairKind, tuple[str, str]] = {
    "newly": ("▲", "now as asked"),
    "worse": ("▼", "got worse"),
    "better": ("△", "partly better"),
    "kept": ("●", "as asked before and after"),
    "still": ("○", "still not as asked"),
    "ungraded": ("·", "not graded"),
}
FATES: Mapping[Fate, tuple[str, str]] = {
    "trained": ("✔", "trained"),
    "chosen": ("…", "chosen to train"),
    "unused": ("–", "not used"),
    "heldout": ("⚖", "held out to judge"),
    "excluded": ("✖", "left out"),
}
USES: Mapping[EntryUse, str] = {
    "hindsight": "a comment, read as hindsight",
    "clone": "a corrected answer, imitated",
    "polarity": "a thumb, score or outcome",
}
_SHOWN_FORMATS = frozenset({"\u200c", "\u200d"})  # joiners: Persian, Indic scripts and emoji need them
_SUSPECT = re.compile(r"[^\n\t -~\u00a0-\u00ac\u00ae-\u02ff\u0370-\u05ff]")


def visible(text: str) -> str:
    """`text` with every invisible or active character replaced: C0 by its picture, the rest by its code point."""
    return _SUSPECT.sub(lambda match: _stand_in(match[0]), text.replace("\r\n", "\n"))


@lru_cache(maxsize=4096)
def _stand_in(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    hidden = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") or code & 0xFFFE == 0xFFFE
    return f"⟨U+{code:04X}⟩" if hidden and char not in _SHOWN_FORMATS else char


def one_line(text: str, limit: int) -> str:
    """`text`, inert, on one line and at most `limit` characters long."""
    flat = " ".join(visible(text[: 4 * limit]).split())
    return flat if len(flat) <= limit and len(text) <= 4 * limit else flat[: limit - 1].rstrip() + "…"


def percent(share: float | None) -> str:
    """A share in [0, 1] as whole percent; 99.6% is not rounded to 100%, nor 0.4% to 0%."""
    if share is None or not math.isfinite(share):
        return "–"
    value = 100 * share
    return f"{value:.0f}%" if value in (0.0, 100.0) or 0.5 <= value < 99.5 else f"{value:.1f}%"


def points(difference: float | None) -> str:
    """A difference of shares in percentage points."""
    return "–" if difference is None or not math.isfinite(difference) else f"{100 * difference:+.1f} points"


def number(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """A figure with `digits` decimals; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:{'+' if sign else ''}.{digits}f}" if math.isfinite(value) else ("∞" if value > 0 else "−∞")


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return "–" if value is None else f"{value:,.0f}"


def plural(value: int, noun: str) -> str:
    """`1 comment`, `2 comments`."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def duration(seconds: float | None) -> str:
    """A duration in the two units that matter."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def when(at: float | None) -> str:
    """UTC seconds as a date and a time."""
    if at is None:
        return "–"
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return "–"
    return f"{moment.day} {moment:%b %Y, %H:%M} UTC"


def rule_name(name: str) -> str:
    """A check's name for people."""
    return "every rule together" if name == "all" else name.replace("_", " ")


def fate_words(item: Item) -> str:
    """What became of an item, in words."""
    words = FATES[item.fate][1]
    if item.fate == "excluded":
        return f"{words}: {item.reason}" if item.reason else words
    if item.fate == "unused":
        words = "not used: no training step learned from its kind"
    if item.use is not None and item.fate in ("trained", "chosen"):
        words += {"hindsight": " as hindsight", "clone": " as clone", "polarity": " as signal"}[item.use]
    return words


def later_words(item: Item) -> str:
    """What the author did after the run had looked."""
    if item.later == "retracted":
        return "retracted since" + ("; this version learned from it" if item.fate == "trained" else "")
    return "edited since; what the run read is shown" if item.later == "edited" else ""

"""Every form of feedback, on a call or a session: taken, checked, kept append-only.

`Ledger` is the way in for code; `routes.router` the one for HTTP.
"""

from practicum.feedback.ledger import Ledger

__all__ = ["Ledger"]

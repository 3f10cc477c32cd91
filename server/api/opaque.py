"""Text that a client carries from one request to the next without looking into it: hidden reasoning, and marks that vouch for none. Pure.

It is readable by whoever wants to; no secret may go in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

_TEXT = "capsule-text-1."
_MARK = "capsule-mark-1."


def sealed(text: str) -> str:
    """`text` in a form that says nothing to a client; `opened` gives it back."""
    return _TEXT + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def opened(token: str | None) -> str | None:
    """The text inside, or None: it is somebody else's token, or only a mark."""
    if token is None or not token.startswith(_TEXT):
        return None
    try:
        return base64.b64decode(token.removeprefix(_TEXT), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None


def mark(text: str) -> str:
    """A short stand-in for a signature of `text`, for clients that drop text without one. It is never checked."""
    return _MARK + base64.b64encode(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()).decode()

"""The end of a start that failed: one sentence and a way out, in the error log too, and where somebody sees it."""

from __future__ import annotations

import sys

from server.errors import CapsuleError, OperatorError
from server.lifecycle.console import escaped, record_error, say
from server.lifecycle.desktop import show_fatal


def report(error: Exception, *, starting: bool) -> int:
    """Tell of `error` and return the exit code. `starting`: a server or chat, whose error is also kept in the error log and, for
    somebody without a terminal, shown in a box."""
    if isinstance(error, CapsuleError):
        text = "error: " + escaped(error.message)
        hint = error.hint if isinstance(error, OperatorError) else ""
        text += "\n" + escaped(hint) if hint else ""
        code = OperatorError.exit_code if isinstance(error, OperatorError) else 1
        path = record_error(text) if starting else None
    else:
        import traceback

        text = f"error: something went wrong inside the program: {type(error).__name__}: {escaped(str(error)) or 'no further words'}"
        code = 1
        path = record_error("".join(traceback.format_exception(error)))
    if path is not None:
        text += f"\nThis is also written in {path}"
    say(text, file=sys.stderr)
    if starting:
        show_fatal(text)
    return code

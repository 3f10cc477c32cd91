"""What goes wrong in a runner, as the errors a client sees; and how long to wait before starting a runner again. Pure."""

from __future__ import annotations

import msgspec

from server.errors import CapsuleError, ClientError, ContextSizeExceeded, DeadlineExceeded, RunnerDied, ServerBusy
from server.protocol import Failed


def error_of(failed: Failed) -> CapsuleError:
    """The error class that stands for a `Failed` message; a new instance each time."""
    retry_after = failed.retry_after_s or 1.0
    match failed.kind:
        case "invalid":
            return ClientError(failed.message, param=failed.param)
        case "context":
            return ContextSizeExceeded(failed.n_prompt_tokens, failed.n_ctx)
        case "busy":
            return ServerBusy(failed.message, retry_after=retry_after)
        case "timeout":
            return DeadlineExceeded(failed.message, retry_after=retry_after)
        case "died":
            return RunnerDied(failed.message)
        case _:
            return CapsuleError(failed.message, param=failed.param)


def with_retry(failed: Failed, seconds: float) -> Failed:
    """A passing failure that does not say when to come again says `seconds`."""
    if failed.kind not in ("busy", "timeout") or failed.retry_after_s is not None:
        return failed
    return msgspec.structs.replace(failed, retry_after_s=seconds)


class Backoff:
    """Doubling delays, in seconds; a process that stayed healthy long enough starts the row again."""

    def __init__(self, first_s: float = 0.1, cap_s: float = 30.0, healthy_s: float = 10.0) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._healthy_s = healthy_s
        self._failures = 0

    @property
    def failures(self) -> int:
        """Deaths in a row."""
        return self._failures

    def after_death(self, healthy_for_s: float) -> float:
        """The delay before the next start, given how long the dead process was ready to serve."""
        if healthy_for_s >= self._healthy_s:
            self._failures = 0
        delay = min(self._cap_s, self._first_s * 2.0 ** min(self._failures, 60))
        self._failures += 1
        return delay

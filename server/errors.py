"""The one error tree. Every failure a person or a client can see is one of these; nothing here knows HTTP or the engine.

CapsuleError                      500 server_error
├── ClientError                   400 invalid_request_error      names the field in `param`
│   ├── ContextSizeExceeded       400 exceed_context_size_error  the prompt can never fit a slot
│   ├── Unsupported               400 not_supported_error        known to the dialect, not done here
│   ├── Unauthenticated           401 authentication_error
│   ├── Forbidden                 403 permission_error
│   ├── NotFound                  404 not_found_error
│   ├── MethodNotAllowed          405 invalid_request_error
│   ├── RequestTimeout            408 invalid_request_error
│   ├── PayloadTooLarge           413 invalid_request_error
│   └── UnsupportedMediaType      415 invalid_request_error
├── Unavailable                   503 unavailable_error          a passing state; carries `retry_after` (seconds)
│   ├── ModelLoading              503
│   ├── ServerBusy                503                            the waiting queue is full
│   ├── DeadlineExceeded          503                            its own time limit passed before it could start
│   ├── RateLimited               429 rate_limit_error           a limit of this API key
│   ├── ShuttingDown              503
│   ├── RunnerDied                503                            the model's process ended under a request
│   └── RunnerStalled             503                            the model's process hangs
└── OperatorError                 never sent to clients: one sentence and a way out, exit code 2
"""

from __future__ import annotations

import math
from typing import Any, ClassVar


class CapsuleError(Exception):
    """Base class. `message` is one plain sentence; `param` names the offending field, if any."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def extra(self) -> dict[str, Any]:
        """Further members of the error object (numbers a client can act on)."""
        return {}

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that belong to this error."""
        return {}


class ClientError(CapsuleError):
    status = 400
    type = "invalid_request_error"


class ContextSizeExceeded(ClientError):
    type = "exceed_context_size_error"
    code = "context_length_exceeded"

    def __init__(self, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"the request needs {n_prompt_tokens} prompt tokens, but the context of one request is {n_ctx} tokens; "
            "shorten it, or start the server with longer contexts, as far as the model was trained for them "
            "(a larger --ctx-size; unless --kv is unified, fewer --parallel slots)",
            param="messages",
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx

    @property
    def extra(self) -> dict[str, Any]:
        return {"n_prompt_tokens": self.n_prompt_tokens, "n_ctx": self.n_ctx}


class Unsupported(ClientError):
    type = "not_supported_error"
    code = "unsupported_parameter"


class Unauthenticated(ClientError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ClientError):
    status = 403
    type = "permission_error"


class NotFound(ClientError):
    status = 404
    type = "not_found_error"


class MethodNotAllowed(ClientError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here; use {allowed}")
        self.allowed = allowed

    @property
    def headers(self) -> dict[str, str]:
        return {"Allow": self.allowed}


class RequestTimeout(ClientError):
    status = 408


class PayloadTooLarge(ClientError):
    status = 413
    code = "payload_too_large"


class UnsupportedMediaType(ClientError):
    status = 415


class Unavailable(CapsuleError):
    """A passing state; `retry_after` is in seconds."""

    status = 503
    type = "unavailable_error"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def reason(self) -> str:
        """For counting: one of a few words."""
        return self.code or "unavailable"

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, math.ceil(self.retry_after)))}


class ModelLoading(Unavailable):
    code = "model_loading"


class ServerBusy(Unavailable):
    """`waiting` requests, or prompt tokens, stand before `limit`; `position`: how many wait already. None where it is not about that."""

    code = "queue_full"

    def __init__(
        self,
        message: str,
        *,
        retry_after: float = 1.0,
        waiting: int | None = None,
        limit: int | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.waiting = waiting
        self.limit = limit
        self.position = position

    @property
    def extra(self) -> dict[str, Any]:
        return {} if self.limit is None else {"waiting": self.waiting, "limit": self.limit, "position": self.position}


class DeadlineExceeded(Unavailable):
    code = "deadline_exceeded"


class RateLimited(Unavailable):
    """A limit of one API key: `what` names it as the key file does (`queued`, `tpm`); `value` is where the key stands now, `position`
    how many wait already."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, what: str, limit: int, value: int, position: int, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after=retry_after)
        self.what = what
        self.limit = limit
        self.value = value
        self.position = position

    @property
    def reason(self) -> str:
        return f"key_{self.what}"

    @property
    def extra(self) -> dict[str, Any]:
        return {"limited": self.what, "limit": self.limit, "value": self.value, "position": self.position}


class ShuttingDown(Unavailable):
    code = "shutting_down"


class RunnerDied(Unavailable):
    code = "runner_died"


class RunnerStalled(Unavailable):
    code = "runner_stalled"


class OperatorError(CapsuleError):
    """A mistake of whoever starts the program: printed as one sentence, exit code 2, never a traceback.

    `hint` is the way out ("use --port 8081"), printed on a line of its own.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

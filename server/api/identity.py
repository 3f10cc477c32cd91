"""What every answer says about itself: its id, when, by which model and build."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from server.http.context import AppContext


@dataclass(frozen=True, slots=True)
class Identity:
    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, context: AppContext, prefix: str) -> Identity:
        return cls(prefix + secrets.token_hex(16), context.model_name, f"capsule-{context.version}")

    def members(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "system_fingerprint": self.fingerprint}

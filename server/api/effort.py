"""How much a model shall think, in the names that chat templates go by. Pure."""

from __future__ import annotations

from typing import Any

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""What clients say -> the three words that templates know."""


def thinking_variables(thinks: bool | None, effort: str | None = None) -> dict[str, Any]:
    """Template variables; None: the template's own default. An effort that no template knows says nothing."""
    variables: dict[str, Any] = {}
    if thinks is not None:
        variables["enable_thinking"] = variables["thinking"] = thinks
    if effort in _EFFORTS:
        variables["reasoning_effort"] = _EFFORTS[effort]
    return variables

"""A chat request in no dialect: what `api/openai`, `api/anthropic` and `api/ollama` translate to, and `api/chatting` runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from server.api.options import Options
from server.chat.tools import OutputWish, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    options: Options
    messages: list[dict[str, Any]]
    """In OpenAI's form, which is what chat templates expect: role, content, tool_calls (arguments as JSON text), tool_call_id, name."""
    add_generation_prompt: bool = True
    continue_final: bool = False
    """The answer goes on with the last message, which is the assistant's."""
    template_variables: dict[str, Any] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    """Those that the template shows."""
    wish: OutputWish = OutputWish()
    field_name: str = "messages"
    """The member to name when the prompt as a whole cannot be served."""

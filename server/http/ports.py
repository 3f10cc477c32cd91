"""What the HTTP side needs of the rooms below, as protocols: `runners/` and `chat/` provide it, tests put fakes there.

Nothing here knows HTTP, and nothing here is a process.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Protocol, Self

from server.protocol import (
    Delta,
    EngineStats,
    Fatal,
    Finished,
    GenerationRequest,
    Loading,
    ModelInfo,
    Prefilled,
    Queue,
    Queued,
    Slots,
    Started,
    Tokens,
)

Progress = Queued | Started | Prefilled | Delta | Finished


class Generation(Protocol):
    """One request in work: entered once; iterating ends after `Finished` or raises what failed; leaving early cancels."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def __aiter__(self) -> AsyncIterator[Progress]: ...


class Runner(Protocol):
    """The model's process as seen from here. Failures are classes of `server.errors`."""

    loading: Loading
    info: ModelInfo | None
    stats: EngineStats
    fatal: Fatal | None
    restarts: int

    @property
    def state(self) -> enum.Enum:
        """Its member's name is one of LOADING, READY, RESTARTING, FAILED, STOPPED."""
        ...

    @property
    def step_age_s(self) -> float:
        """Seconds since the engine's last step; 0 while nobody waits for one."""
        ...

    @property
    def stalled(self) -> bool:
        """Whether the process has done nothing at all for minutes, although it has work; needs to be asked every now and then."""
        ...

    def generate(self, request: GenerationRequest) -> Generation: ...

    async def tokenize(self, content: str | list[int | str], add_special: bool = False, parse_special: bool = True) -> Tokens: ...

    async def detokenize(self, tokens: list[int]) -> str: ...

    async def slots(self) -> Slots: ...

    async def queue(self, most: int = 1000) -> Queue: ...


class Renderer(Protocol):
    async def render(
        self, messages: list[dict[str, Any]], /, *, add_generation_prompt: bool = True, continue_final: bool = False, **variables: Any
    ) -> str:
        """The prompt for these messages; `variables` are further names for the chat template.

        Raises:
            ClientError: the chat template refuses them, takes too long or too much memory.
        """
        ...

"""Chat clients for the end-to-end tests, through the `openai` package as a user would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai

from tests.e2e.harness import Server

TOPICS = (
    "the sea", "a red bicycle", "how bread is baked", "the moon", "a lost dog", "mountain rivers", "the history of tea", "a night train",
    "learning to swim", "old clocks", "the colour green", "a village market", "why leaves fall", "a winter morning", "bees",
    "a good friend",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    text: str
    finish_reason: str
    n_prompt_tokens: int
    n_completion_tokens: int
    n_chunks: int


def client(server: Server, **kwargs: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300, **kwargs)


async def stream_chat(api: openai.AsyncOpenAI, content: str, **kwargs: Any) -> Answer:
    stream = await api.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": content}],
        stream=True,
        stream_options={"include_usage": True},
        **kwargs,
    )
    parts: list[str] = []
    reason = ""
    usage = None
    n_chunks = 0
    async for chunk in stream:
        n_chunks += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            reason = choice.finish_reason or reason
    assert usage is not None
    return Answer("".join(parts), reason, usage.prompt_tokens, usage.completion_tokens, n_chunks)


def chat_all(server: Server, prompts: Sequence[str], options: Sequence[Mapping[str, Any]], *, together: bool) -> list[Answer]:
    """Stream every prompt, all at the same time or one after the other; answers in the order of the prompts."""

    async def run() -> list[Answer]:
        async with client(server) as api:
            if together:
                return list(await asyncio.gather(*(stream_chat(api, p, **o) for p, o in zip(prompts, options, strict=True))))
            return [await stream_chat(api, p, **o) for p, o in zip(prompts, options, strict=True)]

    return asyncio.run(run())

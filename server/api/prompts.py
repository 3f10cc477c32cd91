"""The forms a bare prompt may have: text, token ids, a mixed list, or a list of those. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from server.api.options import Prompt
from server.errors import ClientError, Unsupported
from server.http.ports import Runner


class PromptObject(msgspec.Struct, kw_only=True):
    """llama-server's form for text that goes with media."""

    prompt_string: str
    multimodal_data: list[Any] | None = None


WirePrompt = str | PromptObject | list[int | str | list[int | str] | PromptObject]


def parse_prompts(given: WirePrompt | None, n_vocab: int, *, field: str = "prompt") -> tuple[list[Prompt], bool]:
    """The prompts, and whether they came as a list of prompts. A list with a number in it is one prompt.

    Raises:
        ClientError: it is absent or empty, or holds something that is no token id.
    """
    if given is None:
        raise ClientError(f"{field} is missing", param=field)
    if isinstance(given, str | PromptObject):
        return [_text(given, field)], False
    if not given:
        raise ClientError(f"{field} is an empty list", param=field)
    if any(isinstance(part, int) for part in given):
        return [check_tokens(given, n_vocab, field)], False
    prompts: list[Prompt] = []
    for i, part in enumerate(given):
        assert not isinstance(part, int)
        where = f"{field}[{i}]"
        prompts.append(check_tokens(part, n_vocab, where) if isinstance(part, list) else _text(part, where))
    return prompts, True


def _text(given: str | PromptObject, field: str) -> str:
    if isinstance(given, str):
        return given
    if given.multimodal_data:
        raise Unsupported("media in a prompt is not supported, only text", param=f"{field}.multimodal_data")
    return given.prompt_string


def check_tokens(parts: Sequence[int | str | list[int | str] | PromptObject], n_vocab: int, field: str) -> list[int | str]:
    """Raises:
    ClientError: the list is empty, nested, or holds a number that is no token id.
    """
    if not parts:
        raise ClientError(f"{field} is an empty list", param=field)
    checked: list[int | str] = []
    for i, part in enumerate(parts):
        if not isinstance(part, int | str):
            raise ClientError(f"{field}: token ids and whole prompts cannot be mixed", param=field)
        if isinstance(part, int) and not 0 <= part < n_vocab:
            raise ClientError(f"{field}[{i}] is no token id; ids go from 0 to {n_vocab - 1}", param=f"{field}[{i}]")
        checked.append(part)
    return checked


async def prompt_text(runner: Runner, prompt: Prompt) -> str:
    """A prompt as text, for answers that repeat it."""
    if isinstance(prompt, str):
        return prompt
    texts: list[str] = []
    ids: list[int] = []
    for part in [*prompt, ""]:
        if isinstance(part, int):
            ids.append(part)
            continue
        if ids:
            texts.append(await runner.detokenize(ids))
            ids = []
        texts.append(part)
    return "".join(texts)

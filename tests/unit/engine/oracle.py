"""What a request has to answer, worked out the slow and obvious way, alone in the world."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from server.protocol import GenerationRequest
from tests.unit.engine.fakes import EOG, FakeVocab, extend, next_token, state_of


def cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Try every end of the text; at the first where stop strings end, the longest of them wins."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def solo_answer(tokens: list[int], request: GenerationRequest, n_ctx: int) -> tuple[str, str, int]:
    """(text, stop type, number of tokens generated) of a request on the fakes, in a slot of `n_ctx` cells."""
    state, utf8, text = state_of(tokens), codecs.getincrementaldecoder("utf-8")("replace"), ""
    room = n_ctx - len(tokens)
    limit = room if request.max_tokens < 0 else min(room, request.max_tokens)
    stop_type, n = "limit", 0
    while n < limit:
        token = next_token(state, request.sampling.seed)
        state = extend(state, token)
        n += 1
        if token == EOG:
            stop_type = "eos"
            break
        text += utf8.decode(FakeVocab().piece(token))
        if cut(text, request.stop)[1]:
            break
    shown, stop = cut(text, request.stop)
    return shown, "word" if stop else stop_type, n

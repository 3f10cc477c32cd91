"""A small model that guesses ahead of a large one; implements `engine.ports.DraftModel`. Knows tokens and slots, no requests and no time.

Speculative decoding after Leviathan et al. 2023 (arXiv:2211.17192) with greedy guesses: whether one is right is decided by drawing from
the large model, so the small one can only change the pace.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from server.engine.ports import Draw, Drawn, Row
from server.errors import OperatorError
from server.gguf import MAX_VOCAB_DIFFERENCE
from server.llama.backends import Device
from server.llama.context import Context
from server.llama.fit import Needs
from server.llama.library import native
from server.llama.model import Model, load_model
from server.llama.vocab import Vocabulary
from server.protocol import RunnerSettings, SamplingParams
from server.tokens import common_prefix

log = logging.getLogger(__name__)

P_MIN = 0.5
"""A token that the small model thinks less likely is not guessed, nor anything after it: it would more often be wrong than right."""
CATCH_UP = 128
"""Most tokens that one call computes to catch up with new texts, so that a long prompt delays nobody's step for long."""
NEARLY = 16
"""A text of which no more than this is missing is read along with guessing."""
MAX_FAILURES = 3
KV_TYPE = "f16"
_MOST_GUESSES = 64
"""More wrong tokens than that at the end of a slot are no guesses, but another text."""


def load_draft(settings: RunnerSettings, target: Model, devices: Sequence[Device] = ()) -> Model | None:
    """The small model that the settings name, None if they name none.

    Raises:
        OperatorError: it cannot be read, speaks another vocabulary than `target`, or cannot take back what it has read.
    """
    if settings.draft_path is None:
        return None
    model = load_model(settings.draft_path, settings.draft_offset, settings.draft_size, devices=devices)
    try:
        if problem := vocabulary_problem(target.vocab, model.vocab):
            raise OperatorError(
                f"the draft model {model.name} does not fit the model: {problem}",
                hint="a draft model must have the same tokens; take a small model of the same family, or leave --model-draft out",
            )
        if model.is_recurrent:
            raise OperatorError(
                f"the draft model {model.name} ({model.architecture}) cannot take back guesses that were wrong",
                hint="take a transformer, or leave --model-draft out",
            )
    except BaseException:
        model.close()
        raise
    return model


def together(target: Needs, draft: Needs) -> Needs:
    """What both models take, if the small one gets as many cells as the large one."""
    return replace(
        target,
        cell_bytes=target.cell_bytes + draft.cell_bytes,
        slot_bytes=target.slot_bytes + draft.slot_bytes,
        fixed_bytes=target.fixed_bytes + draft.fixed_bytes,
        weight_bytes=target.weight_bytes + draft.weight_bytes,
        total_weight_bytes=target.total_weight_bytes + draft.total_weight_bytes,
    )


def vocabulary_problem(target: Vocabulary, draft: Vocabulary) -> str:
    """How two vocabularies differ, so that ids of one mean nothing to the other; "" = they do not. 0.1 s for 150,000 tokens."""
    n = native()
    if abs(target.n_vocab - draft.n_vocab) > MAX_VOCAB_DIFFERENCE:
        return f"it has {draft.n_vocab} tokens, the model {target.n_vocab}"
    text, ours, theirs = n.llama_vocab_get_text, target.handle, draft.handle
    for token in range(min(target.n_vocab, draft.n_vocab)):
        if text(ours, token) != text(theirs, token):
            return f"its token {token} is {_shown(text(theirs, token))}, the model's is {_shown(text(ours, token))}"
    for name, find in (("beginning", n.llama_vocab_bos), ("end", n.llama_vocab_eos)):
        if find(ours) != find(theirs):
            return f"its token for the {name} of a text is {find(theirs)}, the model's is {find(ours)}"
    return ""


def _shown(text: bytes | None) -> str:
    return repr((text or b"").decode("utf-8", "replace")[:40])


@dataclass(slots=True)
class _Stream:
    """A sequence within one call: what is missing of its text or, later, its last guess; and the guesses so far."""

    slot: int
    most: int
    guesses: list[int]
    feed: list[int]


class Draft:
    """The small model with cells for `n_slots` sequences of `n_ctx_slot` tokens, longer ones get no guesses; `close` frees both.

    `n_threads` is asked before each call.

    Raises:
        OperatorError: memory is short. The model is not closed then.
    """

    def __init__(self, model: Model, target: Vocabulary, *, n_slots: int, n_ctx_slot: int, n_threads: Callable[[], int]) -> None:
        self._model = model
        self._n_vocab = min(target.n_vocab, model.vocab.n_vocab)
        self._is_eog = target.is_eog
        self._n_threads = n_threads
        n_batch = max(CATCH_UP, 4 * n_slots)
        self._context = Context(
            model,
            n_ctx=n_slots * min(n_ctx_slot, model.n_ctx_train or n_ctx_slot),  # further on it has nothing to say
            n_slots=n_slots,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_threads=n_threads(),
            type_k=KV_TYPE,
            type_v=KV_TYPE,
        )
        self._samplers = [self._context.sampler(SamplingParams(temperature=0.0)) for _ in range(n_slots)]
        self._held: list[list[int]] = [[] for _ in range(n_slots)]
        """The tokens whose cells each slot holds."""
        self._places = _Places(self._held)
        self._has_read = False
        self._failures = 0
        """In a row."""

    @property
    def name(self) -> str:
        return self._model.name

    def close(self) -> None:
        for sampler in self._samplers:
            sampler.close()
        self._context.close()
        self._model.close()

    def propose(self, wanted: Sequence[tuple[int, Sequence[int], int]]) -> list[list[int]]:
        """For each (slot, all tokens so far, most guesses): the tokens that the small model would say next, possibly none."""
        guesses: list[list[int]] = [[] for _ in wanted]
        if self._failures >= MAX_FAILURES:
            return guesses
        try:
            self._context.n_threads = self._n_threads()
            # Slices of lists compare only with those of lists.
            streams = self._streams(
                [(slot, tokens if isinstance(tokens, list) else list(tokens), most) for slot, tokens, most in wanted], guesses
            )
            ready = [stream for stream in streams if len(stream.feed) <= NEARLY]
            behind = [stream for stream in streams if len(stream.feed) > NEARLY]
            # A call either reads or guesses, in turns: so reading delays nobody twice, and is not taken for the pace of guessing.
            self._has_read = bool(behind) and not (ready and self._has_read)
            if self._has_read:
                self._read(behind)
            else:
                self._guess(ready)
            self._failures = 0
        except Exception:
            self._failures += 1
            again = "it starts again from nothing" if self._failures < MAX_FAILURES else "it is asked no more"
            log.exception("the draft model failed; %s", again)
            self._forget_all()
        return guesses

    def _streams(self, wanted: Sequence[tuple[int, Sequence[int], int]], guesses: list[list[int]]) -> list[_Stream]:
        """Who can be guessed for at all; those that miss least come first."""
        streams = []
        for (_, tokens, most), slot, found in zip(wanted, self._places.find(wanted), guesses, strict=True):
            room = self._context.n_ctx_slot + 1 - len(tokens)  # the last guess is not fed
            if slot is not None and tokens and min(most, room) > 0:
                feed = self._missing(slot, tokens)
                if max(feed) < self._n_vocab:
                    streams.append(_Stream(slot, min(most, room), found, feed))
        return sorted(streams, key=lambda stream: len(stream.feed))

    def _missing(self, slot: int, tokens: Sequence[int]) -> list[int]:
        """Cut what the slot holds down to what is still true; the rest of the text, at least its last token."""
        keep = min(common_prefix(self._held[slot], tokens), len(tokens) - 1)
        if not self._context.truncate(slot, keep):
            keep = 0
        self._held[slot][:] = tokens[:keep]
        return list(tokens[keep:])

    def _read(self, behind: list[_Stream]) -> None:
        """Catch up with texts but for their last tokens, which the guesses begin with."""
        left = CATCH_UP
        for stream in behind:
            stream.feed = stream.feed[: min(left, len(stream.feed) - 1)]
            left -= len(stream.feed)
        self._feed([stream for stream in behind if stream.feed], guessing=False)

    def _guess(self, ready: list[_Stream]) -> None:
        """Rounds of one batch for all, until nobody wants or dares another guess."""
        left = self._context.n_batch
        streams = [stream for stream in ready if (left := left - len(stream.feed)) >= 0]
        while streams:
            drawn = self._context.draw(self._feed(streams, guessing=True))
            streams = [stream for stream, result in zip(streams, drawn, strict=True) if self._wants_more(stream, result)]

    def _feed(self, streams: list[_Stream], *, guessing: bool) -> list[Draw]:
        """Compute what all feed, in one batch; what to draw for them if they are `guessing`. Brings `streams` into the batch's order."""
        streams.sort(key=lambda stream: stream.slot)
        rows: list[Row] = []
        draws: list[Draw] = []
        for stream in streams:
            held, last = len(self._held[stream.slot]), len(stream.feed) - 1
            rows += [Row(stream.slot, held + i, token, guessing and i == last) for i, token in enumerate(stream.feed)]
            draws.append(Draw(self._samplers[stream.slot], [len(rows) - 1], (), 0))
        self._context.decode(rows)
        for stream in streams:
            self._held[stream.slot] += stream.feed
        return draws

    def _wants_more(self, stream: _Stream, drawn: Drawn | Exception) -> bool:
        """Note a guess that is worth it; whether there may be another after it."""
        if isinstance(drawn, Exception):
            raise drawn
        token, logprob = drawn[0]
        if logprob is None or logprob.logprob < math.log(P_MIN) or token >= self._n_vocab:
            return False
        stream.guesses.append(token)
        stream.feed = [token]
        return len(stream.guesses) < stream.most and not self._is_eog(token)

    def _forget_all(self) -> None:
        for slot, held in enumerate(self._held):
            self._context.truncate(slot, 0)
            held.clear()


class _Places:
    """Which slot of the small model a sequence has, whatever slot of the decoder it is in or moves to. `held`: tokens by slot."""

    def __init__(self, held: Sequence[Sequence[int]]) -> None:
        self._held = held
        self._homes: dict[int, int] = {}
        self._used = [0] * len(held)
        self._calls = 0

    def find(self, wanted: Sequence[tuple[int, Sequence[int], int]]) -> list[int | None]:
        """A slot for each, no slot twice: the one it had, one that holds its text, or the one that was not used for longest."""
        self._calls += 1
        free = set(range(len(self._held)))
        found: list[int | None] = [None] * len(wanted)
        for index, (slot, tokens, _) in enumerate(wanted):
            home = self._homes.pop(slot, None)
            if home is not None and home in free and self._is_same(home, tokens):
                found[index] = home
                free.remove(home)
        for index, (_, tokens, _) in enumerate(wanted):
            if found[index] is None and free:
                found[index] = best = self._best(free, tokens)
                free.remove(best)
        for (slot, _, _), place in zip(wanted, found, strict=True):
            if place is not None:
                self._homes[slot] = place
                self._used[place] = self._calls
        return found

    def _best(self, free: set[int], tokens: Sequence[int]) -> int:
        same = [slot for slot in free if self._held[slot] and self._is_same(slot, tokens)]
        if same:
            return max(same, key=lambda slot: len(self._held[slot]))
        return min(free, key=lambda slot: (self._used[slot], slot))

    def _is_same(self, slot: int, tokens: Sequence[int]) -> bool:
        """Whether a slot holds the beginning of this text, but for some guesses behind it."""
        held = self._held[slot]
        return len(held) - common_prefix(held, tokens) <= _MOST_GUESSES

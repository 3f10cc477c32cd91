"""Sampling one sequence's next token: request parameters to a native sampler chain; implements `engine.ports.Sampler`.

Knows logits by batch row only. A chain belongs to one sequence, so seeds, penalties and state never cross requests.
"""

from __future__ import annotations

import ctypes
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from server.llama.library import native
from server.llama.vocab import Vocabulary, utf8
from server.protocol import RANDOM_SEED, SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from server.llama.context import Context
    from server.llama.matcher import GrammarMatcher

_MIROSTAT_M = 100  # the number of candidates from which version 1 estimates the distribution, as in its paper
_INT32_MAX = 2**31 - 1


class ChainSampler:
    """A native chain in llama-server's order: logit bias first, then `params.samplers`, then the draw; before all of it what
    `matcher` does not allow is struck. The matcher is the sampler's from then on, also if there is no sampler in the end.

    Raises:
        ValueError: a token, a sampler name or a value that no chain can be made of.
    """

    def __init__(self, context: Context, params: SamplingParams, logprobs: LogprobReader, matcher: GrammarMatcher | None = None) -> None:
        self._context, self._logprobs, self._matcher = context, logprobs, matcher
        self._n, self._vocab = native(), context.model.vocab
        self._draw = self._n.llama_sampler_sample
        self._remembering: list[Any] = []  # the samplers that look at earlier tokens
        self._window = 0
        self._chain: Any = self._n.llama_sampler_chain_init(self._n.llama_sampler_chain_params(True))
        try:
            self._build(params)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the chain; a second call does nothing."""
        if self._chain:
            self._n.llama_sampler_free(self._chain)
            self._chain = None
            self._remembering = []
            if self._matcher is not None:
                self._matcher.close()

    @property
    def has_ended(self) -> bool:
        return self._matcher is not None and self._matcher.has_ended

    def sample(self, row: int, n_logprobs: int | None) -> tuple[int, TokenLogprob | None]:
        """Draw from the logits of batch row `row` of the last decode and accept the token.

        `n_logprobs` None = no log-probabilities, else the drawn token's and the `n_logprobs` likeliest ones' under the
        distribution before any sampler.

        Raises:
            ValueError: that row has no logits, or the sampler is closed.
            ConstraintFault: the matcher allows no token.
        """
        if not self._chain:
            raise ValueError("the sampler is closed")
        logits = self._context.logits(row)  # drawing from a row without logits would abort the process
        token: int
        if self._matcher is None:
            token = self._draw(self._chain, self._context.handle, row)
        else:
            token = self._matcher.draw(self._chain, self._context.handle, row, logits)
        return token, None if n_logprobs is None else self._logprobs.read(self._context.handle, row, logits, token, n_logprobs)

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Feed the prompt's tail to the penalties.

        Raises:
            ValueError: the vocabulary lacks one of the tokens.
        """
        accept = self._n.llama_sampler_accept
        for token in tokens[-self._window :] if self._window and self._remembering else ():
            self._vocab.check(token)
            for sampler in self._remembering:
                accept(sampler, token)

    # ---- building --------------------------------------------------------------------------------------------------

    def _add(self, sampler: Any) -> Any:
        if not sampler:
            raise ValueError("the native library refuses these sampling parameters")
        self._n.llama_sampler_chain_add(self._chain, sampler)
        return sampler

    def _build(self, params: SamplingParams) -> None:
        n = self._n
        seed = params.seed & 0xFFFFFFFF
        if seed == RANDOM_SEED:
            seed = secrets.randbelow(RANDOM_SEED)
        self._add_biases(params)
        if params.mirostat:
            self._add(n.llama_sampler_init_temp(params.temperature))
            if params.mirostat == 1:
                self._add(n.llama_sampler_init_mirostat(self._vocab.n_vocab, seed, params.mirostat_tau, params.mirostat_eta, _MIROSTAT_M))
            else:
                self._add(n.llama_sampler_init_mirostat_v2(seed, params.mirostat_tau, params.mirostat_eta))
            return
        makers = self._makers(params, seed)
        names = params.samplers
        if unknown := [name for name in names if name not in makers]:
            raise ValueError(f'there is no sampler "{unknown[0]}"; known are {", ".join(makers)}')
        if greedy := _is_greedy(params):
            names = tuple(name for name in names if name in ("penalties", "dry"))  # the others cannot change the likeliest token
        for name in names:
            if maker := makers[name]:
                maker()
        self._add(n.llama_sampler_init_greedy() if greedy else n.llama_sampler_init_dist(seed))

    def _makers(self, params: SamplingParams, seed: int) -> dict[str, Callable[[], None] | None]:
        """What each sampler name adds to the chain; None for one that these parameters switch off."""
        n, p, keep = self._n, params, max(0, params.min_keep)

        def when(wanted: bool, init: Callable[..., Any], *arguments: float) -> Callable[[], None] | None:
            return (lambda: (self._add(init(*arguments)), None)[1]) if wanted else None

        penalised = p.repeat_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
        return {
            "penalties": self._add_penalties(p) if penalised and p.repeat_last_n != 0 else None,
            "dry": self._add_dry(p) if p.dry_multiplier != 0.0 and p.dry_base >= 1.0 and p.dry_penalty_last_n != 0 else None,
            "top_n_sigma": when(p.top_n_sigma >= 0.0, n.llama_sampler_init_top_n_sigma, p.top_n_sigma),
            "top_k": when(0 < p.top_k < self._vocab.n_vocab, n.llama_sampler_init_top_k, p.top_k),
            "typ_p": when(p.typical_p < 1.0, n.llama_sampler_init_typical, p.typical_p, keep),
            "top_p": when(p.top_p < 1.0, n.llama_sampler_init_top_p, p.top_p, keep),
            "min_p": when(p.min_p > 0.0, n.llama_sampler_init_min_p, p.min_p, keep),
            "xtc": when(p.xtc_probability > 0.0 and p.xtc_threshold <= 0.5, n.llama_sampler_init_xtc,
                        p.xtc_probability, p.xtc_threshold, keep, seed),
            "temperature": when(p.temperature != 1.0 or p.dynatemp_range > 0.0, n.llama_sampler_init_temp_ext,
                                p.temperature, p.dynatemp_range, p.dynatemp_exponent),
        }  # fmt: skip

    def _look_back(self, last_n: int) -> int:
        """Tokens to look back on; -1 means the whole context of a slot."""
        count = self._context.n_ctx_slot if last_n < 0 else min(last_n, self._context.n_ctx_slot)
        self._window = max(self._window, count)
        return count

    def _add_penalties(self, p: SamplingParams) -> Callable[[], None]:
        def add() -> None:
            repeat = p.repeat_penalty
            if not (math.isfinite(repeat) and repeat > 0.0 and math.isfinite(p.frequency_penalty) and math.isfinite(p.presence_penalty)):
                raise ValueError("penalties must be finite, and the repeat penalty greater than 0")
            last_n = self._look_back(p.repeat_last_n)
            init = self._n.llama_sampler_init_penalties
            sampler = init(self._vocab.n_vocab, last_n, repeat, p.frequency_penalty, p.presence_penalty)
            self._remembering.append(self._add(sampler))

        return add

    def _add_dry(self, p: SamplingParams) -> Callable[[], None]:
        def add() -> None:
            breakers = [utf8(text) for text in p.dry_sequence_breakers if text and "\0" not in text]
            texts = (ctypes.c_char_p * len(breakers))(*breakers)
            last_n = self._look_back(p.dry_penalty_last_n)
            length = max(0, min(p.dry_allowed_length, _INT32_MAX))
            init = self._n.llama_sampler_init_dry
            self._remembering.append(
                self._add(init(self._vocab.handle, p.dry_multiplier, p.dry_base, length, last_n, texts, len(breakers)))
            )

        return add

    def _add_biases(self, params: SamplingParams) -> None:
        biases = [(self._vocab.check(token), bias) for token, bias in params.logit_bias]
        if any(math.isnan(bias) or bias == math.inf for _, bias in biases):
            raise ValueError("a logit bias must be a number or minus infinity")
        banned = self._vocab.suppressed_tokens + (self._vocab.eog_tokens if params.ignore_eos else ())
        biases += [(token, -math.inf) for token in banned]
        if biases:
            entries = (self._n.llama_logit_bias * len(biases))(*biases)
            self._add(self._n.llama_sampler_init_logit_bias(self._vocab.n_vocab, len(biases), entries))


def _is_greedy(p: SamplingParams) -> bool:
    """Whether the draw is the likeliest token, and no sampler but the penalties can make another token that."""
    may_drop_the_top = (p.xtc_probability > 0.0 and p.xtc_threshold <= 0.5 and "xtc" in p.samplers) or (
        p.typical_p < 1.0 and "typ_p" in p.samplers
    )
    return p.temperature <= 0.0 and p.dynatemp_range <= 0.0 and "temperature" in p.samplers and not may_drop_the_top


class LogprobReader:
    """Log-probabilities of a row of logits as they are before any sampler. One per context; each thread has a chain of its own."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab
        self._own = threading.local()
        self._all: list[_TopReader] = []

    def close(self) -> None:
        """Free the chains. No thread may be reading."""
        for reader in self._all:
            reader.close()
        self._all.clear()
        self._own = threading.local()

    def read(self, context: int, row: int, logits: Any, token: int, n_top: int) -> TokenLogprob:
        """`logits`: pointer to that row of the context. Natural logarithms; `top` by falling probability, then by id."""
        reader: _TopReader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = _TopReader()
            self._all.append(reader)
        z, found = reader.read(context, row, max(0, min(n_top, self._vocab.n_vocab)))
        piece = self._vocab.piece
        top = sorted(found, key=lambda pair: (-pair[1], pair[0]))
        entries = tuple((other, piece(other, special=True), logit - z) for other, logit in top)
        return TokenLogprob(token, piece(token, special=True), logits[token] - z, entries)


class _TopReader:
    """The native library lays out its candidate array, computes the softmax and finds the likeliest; a sampler of ours at the end of
    that chain reads the few values wanted, so no Python object is made per vocabulary entry."""

    def __init__(self) -> None:
        n = self._n = native()
        self._n_top = 0
        self._found: list[tuple[int, float]] = []
        self._z = math.nan
        self._apply = n.llama_sampler_i_apply(self._read)  # native code keeps bare pointers to these two
        self._interface = n.llama_sampler_i(apply=self._apply)
        self._chain: Any = n.llama_sampler_chain_init(n.llama_sampler_chain_params(True))
        n.llama_sampler_chain_add(self._chain, n.llama_sampler_init_dist(0))  # for the probabilities that it leaves behind
        n.llama_sampler_chain_add(self._chain, n.llama_sampler_init(self._interface, None))

    def close(self) -> None:
        self._n.llama_sampler_free(self._chain)

    def read(self, context: int, row: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """What to take from a logit to get its log-probability, and (token, logit) of the `n_top` likeliest in any order."""
        self._n_top, self._z, self._found = n_top, math.nan, []
        self._n.llama_sampler_sample(self._chain, context, row)
        return self._z, self._found

    def _read(self, _sampler: Any, array: Any) -> None:
        """Called by native code. Whatever happens a choice must be left, or it aborts the process."""
        candidates = array.contents
        candidates.selected = 0
        top_k = self._n.llama_sampler_init_top_k(max(1, self._n_top))
        self._n.llama_sampler_apply(top_k, array)
        self._n.llama_sampler_free(top_k)
        data = candidates.data
        # Softmax says p = exp(logit - z); taken at the likeliest token, where p is most exact.
        self._z = data[0].logit - math.log(data[0].p)
        self._found = [(data[i].id, data[i].logit) for i in range(self._n_top)]

"""Holding answers to a form with llguidance: the bridge to a model's vocabulary, and grammars compiled for it. Implements
`engine.ports.Constraints`; the only importer of llguidance.

Compiling is bounded beforehand (`schema`, `lark`, `gbnf_lark`), by the compiler's own limits, and by a thread with a large stack, since
the compiler follows chains of rules by recursion. What it refuses or warns of is a `ClientError`: nothing is enforced by half.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import json
import logging
import sys
import threading
import time
import types
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from server.engine.ports import ConstraintFault
from server.errors import ClientError
from server.llama.gbnf_lark import lark_of_gbnf
from server.llama.hardware import usable_cpus
from server.llama.lark import prepare_lark
from server.llama.library import native
from server.llama.masks import Masks
from server.llama.matcher import GrammarMatcher, brief, guarded, stopped
from server.llama.schema import BOUNDED, STRICT, TooMuch, check_expression, parse_schema
from server.llama.vocab import Vocabulary
from server.requests import Constraint

if TYPE_CHECKING:
    from llguidance._lib import LLMatcher, LLTokenizer

log = logging.getLogger(__name__)

MAX_SOURCE = 256 << 10
"""Bytes of a schema or grammar."""
MAX_EXPRESSION = 16 << 10
"""Bytes of a regular expression."""
COMPILE_SECONDS = 20.0
"""What is not compiled by then is refused. No grammar is known that gets there; the thread is left to itself then."""
MAX_LOST_THREADS = 2
_REMEMBERED = 16
_STACK_BYTES = 64 << 20
_LIMITS = {
    "initial_lexer_fuel": 200_000,  # 20,000 optional characters in a row took 12 s and 1.7 GB with the default of a million
    "step_max_items": 1_000_000,  # a grammar spelled out character by character needs some 100,000 inside a string
    "verbose_errors": False,
}
_WHAT = {"json_schema": "the JSON schema", "regex": "the regular expression", "lark": "the grammar", "gbnf": "the grammar"}
_SPECIAL_MARK = b"\xff"
"""In front of a token that is no text; no UTF-8 text has that byte."""


@cache
def llguidance() -> Any:
    """The compiled module `llguidance._lib`. The package's `__init__` would bring along what is not used, so a bare package takes its
    place."""
    if "llguidance" not in sys.modules:
        found = importlib.util.find_spec("llguidance")
        if found is None or not found.submodule_search_locations:
            raise ImportError("llguidance is not installed")
        package = types.ModuleType("llguidance")
        package.__path__ = list(found.submodule_search_locations)
        package.__spec__ = importlib.machinery.ModuleSpec("llguidance", None, is_package=True)
        sys.modules["llguidance"] = package
    return importlib.import_module("llguidance._lib")


class GrammarConstraints:
    """`close` before the model is closed; matchers must not be used afterwards."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab
        self._lock = threading.Lock()
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._compiler = _LargeStack()
        self._pool = ThreadPoolExecutor(max(1, usable_cpus() // 2), "mask")
        self._n_lost = 0

    def close(self) -> None:
        self._compiler.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        """A matcher at the beginning of the text. The first call makes the bridge to the vocabulary, which takes about 0.7 s.

        Raises:
            ClientError: it is malformed, unsupported, impossible to satisfy, or too much; names the constraint's `param`.
        """
        with self._lock:  # grammars are compiled one at a time, and copied by nobody else meanwhile
            try:
                compiled = self._find(constraint)
                copy = guarded(compiled.deep_copy)
            except (ValueError, ConstraintFault) as error:
                raise ClientError(f"{constraint.param}: {_WHAT[constraint.kind]} {_refusal(error)}", param=constraint.param) from None
            return GrammarMatcher(copy, self._masks, self._pool, self._vocab.n_vocab, self._eog)

    # ---- grammars --------------------------------------------------------------------------------------------------

    def _find(self, constraint: Constraint) -> LLMatcher:
        key = constraint.kind, constraint.source
        if (found := self._compiled.get(key)) is not None:
            self._compiled.move_to_end(key)
            return found
        made = self._compile(constraint)
        self._compiled[key] = made
        while len(self._compiled) > _REMEMBERED:
            self._compiled.popitem(last=False)
        return made

    def _compile(self, constraint: Constraint) -> LLMatcher:
        source, limit = constraint.source, MAX_EXPRESSION if constraint.kind == "regex" else MAX_SOURCE
        if len(source) > limit or len(source.encode("utf-8", "surrogatepass")) > limit:
            raise TooMuch(f"it has more than {limit} bytes")
        if any(0xD800 <= ord(character) < 0xE000 for character in source):
            raise ValueError("it is no valid Unicode")
        if self._n_lost > MAX_LOST_THREADS:
            raise TooMuch("earlier ones took so long that no more are compiled; the server has to be started again")
        grammar = self._grammar(constraint.kind, source)
        begun = time.monotonic()
        future = self._compiler.submit(self._matcher, grammar)
        try:
            made = future.result(COMPILE_SECONDS)
        except TimeoutError:
            self._n_lost += 1
            self._compiler = _LargeStack()
            raise TooMuch(f"it takes more than {COMPILE_SECONDS:.0f} s to compile") from None
        log.debug("a constraint of %d bytes was compiled in %.3f s", len(source), time.monotonic() - begun)
        return made

    def _grammar(self, kind: str, source: str) -> str:
        """The source in the compiler's own form."""
        library = llguidance().LLMatcher
        if kind == "json_schema":
            return str(library.grammar_from_json_schema(json.dumps(parse_schema(source)), overrides={**BOUNDED, **STRICT}))
        if kind == "regex":
            check_expression(source)
            return str(library.grammar_from_regex(source))
        return str(library.grammar_from_lark(prepare_lark(source, self._find_token) if kind == "lark" else lark_of_gbnf(source)))

    def _matcher(self, grammar: str) -> LLMatcher:
        library = llguidance()
        made = guarded(library.LLMatcher, self._tokenizer, grammar, log_level=0, limits=library.LLParserLimits(**_LIMITS))
        if made.is_error():
            raise ValueError(brief(made.get_error()))
        if warnings := made.get_grammar_warnings():
            raise ValueError(brief("; ".join(warnings)))
        guarded(made.compute_bitmask)  # copies start with what this has found out
        stopped(made)
        return made  # type: ignore[no-any-return]

    # ---- the vocabulary --------------------------------------------------------------------------------------------

    @cached_property
    def _eog(self) -> frozenset[int]:
        return frozenset(self._vocab.eog_tokens)

    @cached_property
    def _masks(self) -> Masks:
        return Masks(self._vocab.n_vocab)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """What a token adds to a text is what the grammar sees of it; tokens that leave no trace there can only be named."""
        if not self._eog:
            raise ValueError("cannot be followed: this model has no token that ends a text")
        begun, piece = time.monotonic(), self._vocab.piece
        tokens = []
        for token in range(self._vocab.n_vocab):
            text = piece(token)
            if not text or token in self._eog:
                written = piece(token, special=True)
                text = _SPECIAL_MARK + written if written else b""
            tokens.append(text)
        tokenize = ctypes.cast(native()._lib.llama_tokenize, ctypes.c_void_p).value
        made = llguidance().LLTokenizer.from_llamacpp(
            tokens=tokens, vocab_ptr=self._vocab.handle, tokenize_fptr=tokenize, eos_token=sorted(self._eog), slices=None
        )
        log.info("the vocabulary was made known to the grammar compiler in %.2f s", time.monotonic() - begun)
        return made  # type: ignore[no-any-return]

    def _find_token(self, name: str) -> tuple[int, bool] | None:
        found = self._vocab.tokenize(name, add_special=False, parse_special=True)
        if len(found) != 1 or self._vocab.piece(found[0], special=True) != name.encode():
            return None
        return found[0], not self._vocab.piece(found[0]) or found[0] in self._eog


class _LargeStack(ThreadPoolExecutor):
    """One thread with a stack that is large enough for what the compiler is given."""

    def __init__(self) -> None:
        super().__init__(1, "grammar")
        usual = threading.stack_size(_STACK_BYTES)
        try:
            self.submit(int).result()
        finally:
            threading.stack_size(usual)


def _refusal(error: Exception) -> str:
    if isinstance(error, TooMuch):
        return f"is not accepted: {error}"
    return f"cannot be followed: {brief(str(error)).removeprefix('cannot be followed: ')}"

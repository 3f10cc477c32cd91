"""The runner's front door: checks and tokenises what comes in, and answers what needs no step. Runs in threads of its own.

Short texts are tokenised where they arrive, long ones by a second thread, requests with a constraint by a third, so that nothing else
waits behind them. It reads only what the engine publishes and only puts commands into its inbox.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from server.engine.engine import Engine
from server.engine.live import busy, cancelled_while_waiting
from server.engine.ports import Constraints, Matcher, Vocab
from server.engine.prompt import text_length, text_of, tokens_of
from server.engine.request import WaitingRequest, context_refusal
from server.errors import ClientError
from server.protocol import (
    Cancel,
    Command,
    Detokenize,
    Event,
    Failed,
    GetQueue,
    GetSlots,
    Message,
    Pause,
    Resume,
    Slots,
    Start,
    Step,
    Submit,
    Text,
    Tokenize,
    Tokens,
)

logger = logging.getLogger(__name__)

LONG_TEXT = 16 * 1024
"""Characters; tokenising fewer takes a few milliseconds."""

Job = Submit | Tokenize | Detokenize


@dataclass(slots=True)
class _Arrival:
    submitted_at: float
    order: int
    paused: bool = False


class Intake:
    """`handle` is called from one thread, in the order of arrival. Every `Submit` either reaches the engine or is ended here."""

    def __init__(
        self,
        engine: Engine,
        vocab: Vocab,
        constraints: Constraints,
        *,
        n_ctx_slot: int,
        bos: int | None,
        put: Callable[[Message], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._vocab = vocab
        self._constraints = constraints
        self._n_ctx_slot = n_ctx_slot
        self._bos = bos
        self._put = put
        self._clock = clock
        self._orders = count()
        self._n_passed_on = 0
        # Requests being tokenised. Whoever takes one out, under the lock, is the one to end it or pass it on.
        self._arrivals: dict[int, _Arrival] = {}
        self._lock = threading.Lock()
        self._long: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._constrained: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def start(self) -> None:
        """Start the threads for long texts and for constraints."""
        threading.Thread(target=self._work, args=(self._long,), name="tokenizer", daemon=True).start()
        threading.Thread(target=self._work, args=(self._constrained,), name="constraints", daemon=True).start()

    def handle(self, command: Command) -> None:
        match command:
            case Submit():
                self._receive(command)
            case Cancel():
                self._cancel(command)
            case Pause() | Resume():
                self._pause(command)
            case Tokenize():
                self._now_or_later(command, text_length(command.content))
            case Detokenize():
                self._now_or_later(command, len(command.tokens))
            case GetSlots():
                self._put(Slots(id=command.id, slots=self._engine.slots, n_waiting=self._engine.stats.n_waiting))
            case GetQueue():
                self._engine.inbox.put(command)
            case Start():
                logger.error("a second Start is ignored")

    def fail_all(self, message: str) -> None:
        """End every request that is still being tokenised."""
        with self._lock:
            ids = list(self._arrivals)
            self._arrivals.clear()
        self._tell(*(Failed(id=request_id, kind="internal", message=message) for request_id in ids))

    # ---- requests ----------------------------------------------------------------------------------------------

    def _receive(self, command: Submit) -> None:
        if command.id in self._arrivals:
            logger.error("request id %d was submitted twice; the second is ignored", command.id)
        elif len(self._arrivals) + self._n_passed_on - self._engine.n_ended >= self._engine.capacity:
            # Refused before any work is done for it.
            self._tell(busy(command.id, self._engine.max_queue))
        else:
            with self._lock:
                self._arrivals[command.id] = _Arrival(self._clock(), next(self._orders))
            if command.request.constraint is None:
                self._now_or_later(command, text_length(command.request.prompt))
            else:
                self._constrained.put(command)

    def _cancel(self, command: Cancel) -> None:
        with self._lock:
            arrival = self._arrivals.pop(command.id, None)
            if arrival is None:
                self._engine.inbox.put(command)
        if arrival is not None:
            self._tell(cancelled_while_waiting(command.id, 0, self._clock() - arrival.submitted_at))

    def _pause(self, command: Pause | Resume) -> None:
        with self._lock:
            arrival = self._arrivals.get(command.id)
            if arrival is None:
                self._engine.inbox.put(command)
            else:
                arrival.paused = isinstance(command, Pause)

    def _admit(self, command: Submit) -> None:
        """Tokenise a request, compile its constraint and pass it on, or refuse it."""
        if command.id not in self._arrivals:
            return  # cancelled before its turn
        matcher: Matcher | None = None
        try:
            tokens = self._prompt_tokens(command)
            refusal = context_refusal(command.id, len(tokens), self._n_ctx_slot)
            if refusal is None and command.request.constraint is not None:
                matcher = self._constraints.compile(command.request.constraint)
        except ClientError as error:
            refusal = Failed(id=command.id, kind="invalid", message=error.message, param=error.param)
        except Exception:
            logger.exception("taking a request in failed")
            refusal = Failed(id=command.id, kind="internal", message="the request could not be tokenised or compiled")
        with self._lock:
            arrival = self._arrivals.pop(command.id, None)
            if arrival is not None and refusal is None:
                self._n_passed_on += 1
                submitted = arrival.submitted_at, arrival.order
                self._engine.inbox.put(
                    WaitingRequest(command.id, command.request, tokens, *submitted, paused=arrival.paused, matcher=matcher)
                )
        if arrival is not None and refusal is not None:
            self._tell(refusal)

    def _prompt_tokens(self, command: Submit) -> list[int]:
        request = command.request
        special = {"add_special": request.add_special, "parse_special": request.parse_special}
        tokens = tokens_of(self._vocab, request.prompt, **special, param="prompt")
        if tokens:
            return tokens
        if self._bos is None:
            raise ClientError("the prompt is empty, and this model has no token that begins a text", param="prompt")
        return [self._bos]

    def _tell(self, *events: Event) -> None:
        if events:
            self._put(Step(events, self._engine.stats))

    # ---- texts -------------------------------------------------------------------------------------------------

    def _now_or_later(self, job: Job, length: int) -> None:
        if length > LONG_TEXT:
            self._long.put(job)
        else:
            self._do(job)

    def _work(self, jobs: queue.SimpleQueue[Job]) -> None:
        while True:
            self._do(jobs.get())

    def _do(self, job: Job) -> None:
        if isinstance(job, Submit):
            self._admit(job)
            return
        try:
            self._put(self._tokens(job) if isinstance(job, Tokenize) else Text(id=job.id, text=text_of(self._vocab, job.tokens)))
        except ClientError as error:
            self._put(Failed(id=job.id, kind="invalid", message=error.message, param=error.param))
        except Exception:
            logger.exception("tokenising failed")
            self._put(Failed(id=job.id, kind="internal", message="the text could not be converted"))

    def _tokens(self, job: Tokenize) -> Tokens:
        special = {"add_special": job.add_special, "parse_special": job.parse_special}
        tokens = tokens_of(self._vocab, job.content, **special, param="content")
        return Tokens(id=job.id, tokens=tuple(tokens), pieces=tuple(self._vocab.piece(token, special=True) for token in tokens))

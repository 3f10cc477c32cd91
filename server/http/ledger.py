"""What is open now and what was used of late, in all and for each key: sequences that wait or run, tokens of a minute. Pure.

The places of a request are booked when it is admitted, and all given back when it is over, whatever happened in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from server.http.ports import Progress
from server.protocol import Delta, Finished, Queued, Started
from server.window import SlidingSum

WINDOW_SECONDS = 60
CHARS_PER_TOKEN = 4
"""What a prompt weighs until it has been tokenised."""


@dataclass(slots=True)
class Account:
    """Sequences that have been admitted and are not over, and tokens."""

    waiting: int = 0
    running: int = 0
    waiting_tokens: int = 0
    """Prompt tokens of those that wait; guessed from the length of the text where it has not been tokenised yet."""
    used: SlidingSum = field(default_factory=lambda: SlidingSum(WINDOW_SECONDS))
    """Tokens of the last minute."""


class Ledger:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.total = Account()
        self._by_key: dict[str, Account] = {}

    def of(self, key: str) -> Account:
        """The account of all keys of this name."""
        return self._by_key.setdefault(key, Account())

    def book(self, key: str | None, n_sequences: int, n_chars: int) -> Ticket:
        """Places for the sequences of one request; `n_chars` is the text of all their prompts."""
        accounts = (self.total,) if key is None else (self.total, self.of(key))
        each = n_chars // CHARS_PER_TOKEN // max(1, n_sequences)
        return Ticket([Place(accounts, each, self.clock) for _ in range(n_sequences)])


class Place:
    """One sequence: it waits, runs, is over. Fed with its events; `leave` ends it wherever it is, and may be called again."""

    __slots__ = ("_accounts", "_clock", "_n_generated", "_n_tokens", "_running", "_waiting")

    def __init__(self, accounts: tuple[Account, ...], n_tokens: int, clock: Callable[[], float]) -> None:
        self._accounts = accounts
        self._clock = clock
        self._waiting = True
        self._running = False
        self._n_tokens = n_tokens
        self._n_generated = 0
        for account in accounts:
            account.waiting += 1
            account.waiting_tokens += n_tokens

    def event(self, event: Progress) -> None:
        match event:
            case Queued() if self._waiting:
                for account in self._accounts:
                    account.waiting_tokens += event.n_prompt_tokens - self._n_tokens
                self._n_tokens = event.n_prompt_tokens
            case Started() if self._waiting:
                self._stop_waiting()
                self._running = True
                for account in self._accounts:
                    account.running += 1
                self._charge(event.n_prompt_tokens)
            case Delta():
                self._n_generated += max(1, len(event.tokens))
            case Finished():
                self._n_generated = event.n_predicted
                self.leave()

    def leave(self) -> None:
        if self._waiting:
            self._stop_waiting()
        if self._running:
            self._running = False
            for account in self._accounts:
                account.running -= 1
            self._charge(self._n_generated)

    def _stop_waiting(self) -> None:
        self._waiting = False
        for account in self._accounts:
            account.waiting -= 1
            account.waiting_tokens -= self._n_tokens

    def _charge(self, n_tokens: int) -> None:
        now = self._clock()
        for account in self._accounts:
            account.used.add(now, n_tokens)


class Ticket:
    """The places of one request."""

    def __init__(self, places: list[Place]) -> None:
        self._places = places
        self._n_taken = 0

    def take(self) -> Place | None:
        """The place for the next sequence that is submitted; None if none was booked for it."""
        if self._n_taken >= len(self._places):
            return None
        self._n_taken += 1
        return self._places[self._n_taken - 1]

    def close(self) -> None:
        """The request is over. May be called again."""
        for place in self._places:
            place.leave()

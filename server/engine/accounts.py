"""What each key has in work, may have in work and was served, and what a request is expected to cost. Knows no queue and no order.

Costs are weighted tokens, as in the paper on virtual token counters (Sheng et al., OSDI 2024, arXiv 2401.00588): a prompt token that
was really computed counts 1, a generated one 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.engine.request import Entry, PutAside
from server.figures import KeyShare
from server.requests import Flow

PROMPT_COST, OUTPUT_COST = 1.0, 2.0
EXPECTED_OUTPUT = 256
"""Tokens that an answer is expected to have, unless it may not have so many."""
KEYS_KEPT = 1024
"""So many keys are remembered while they have nothing in work."""


def expected_cost(entry: Entry) -> tuple[float, float]:
    """What the rest of an entry is expected to cost, in weighted tokens: (prompt, if nothing is cached; output)."""
    limit = entry.request.max_tokens
    n_output = EXPECTED_OUTPUT if limit < 0 else min(limit, EXPECTED_OUTPUT)
    if not isinstance(entry, PutAside):
        return PROMPT_COST * len(entry.tokens), OUTPUT_COST * n_output
    sequence = entry.sequence
    n_prompt = max(0, sequence.n_prompt - sequence.n_highest)
    return PROMPT_COST * n_prompt, OUTPUT_COST * max(1, n_output - sequence.n_predicted)


@dataclass(slots=True)
class Account:
    """One key's. `served` is in weighted tokens, divided by the weight that the key had when it was served."""

    weight: float = 1.0
    max_running: int = 0
    n_running: int = 0
    n_waiting: int = 0
    served: float = 0.0


class Accounts:
    """All keys'. What a key may is what its latest request says: the key file may have been read again."""

    def __init__(self) -> None:
        self.at_limit: set[str] = set()
        """Keys of which no more may run now."""
        self._by_key: dict[str, Account] = {}

    def waits(self, flow: Flow) -> Account:
        """One more of the key's requests waits."""
        account = self._by_key.setdefault(flow.key, Account())
        account.weight, account.max_running = flow.weight, flow.max_running
        account.n_waiting += 1
        self._changed(flow.key, account)
        return account

    def withdrawn(self, key: str) -> None:
        self._by_key[key].n_waiting -= 1
        self._forget(key)

    def starts(self, key: str) -> None:
        account = self._by_key[key]
        account.n_waiting -= 1
        account.n_running += 1
        self._changed(key, account)

    def stops(self, key: str) -> None:
        account = self._by_key[key]
        account.n_running -= 1
        self._changed(key, account)
        self._forget(key)

    def charge(self, key: str, cost: float) -> None:
        account = self._by_key[key]
        account.served += cost / account.weight

    def shares(self) -> list[KeyShare]:
        return [
            KeyShare(key=key, n_running=account.n_running, n_waiting=account.n_waiting, served=account.served)
            for key, account in self._by_key.items()
        ]

    def _changed(self, key: str, account: Account) -> None:
        if 0 < account.max_running <= account.n_running:
            self.at_limit.add(key)
        else:
            self.at_limit.discard(key)

    def _forget(self, key: str) -> None:
        account = self._by_key[key]
        if not account.n_waiting and not account.n_running and len(self._by_key) > KEYS_KEPT:
            del self._by_key[key]

"""Minimum shares of the classes: the highest that waits goes first, and who is passed by saves up for a turn. Knows no queues.

Of all that is served, a class that waits saves its share, and once it has saved what its next request is expected to cost, that one
goes before the higher classes' (deficit round robin, Shreedhar and Varghese 1995, between strict priorities). So with all three
waiting at all times they are served 16 : 4 : 1; with less of it, a higher class finds nothing of the lower ones in its way but what they
are owed: a burst of `MOST_SAVED` at most.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from server.requests import CLASSES

WEIGHTS = (16, 4, 1)
SHARES = tuple(weight / sum(WEIGHTS) for weight in WEIGHTS)
MOST_SAVED = 4096.0
"""Weighted tokens. It is saved up only where no slot becomes free; more would let a low class hold up a high one for long."""
TURN = 128.0
"""Weighted tokens that are owed to a running prompt of a lower class before it goes once ahead of the higher ones'; no more is saved."""
_ROUNDING = 1e-6
"""Shares are added up in another order when the future is played through."""


def _zeros() -> list[float]:
    return [0.0] * len(CLASSES)


@dataclass(slots=True)
class Paid:
    """One running request's account with its class."""

    rank: int
    overtook: bool = False
    """It started before a higher class that waited."""
    left: float = 0.0
    """What was set aside for it and is not used up."""


@dataclass(slots=True)
class Credits:
    """What each class is owed, in weighted tokens; negative: it took more than its share while a higher class waited."""

    saved: list[float] = field(default_factory=_zeros)
    steps: list[float] = field(default_factory=_zeros)
    """The same in small: what prompts that run are owed of the steps."""
    _spent: list[float] = field(default_factory=_zeros)
    """What each class was served since the last `settle`."""
    _set_aside: list[float] = field(default_factory=_zeros)
    """Of that, what had been set aside when it started."""
    _overdrawn: list[float] = field(default_factory=_zeros)
    """Of that, what overtakers took beyond what had been set aside for them."""
    _is_settled: bool = True

    def copy(self) -> Credits:
        """Of one that is settled."""
        return Credits(self.saved.copy(), self.steps.copy())

    def due(self, waiting: Seq[bool], price: Callable[[int], float]) -> int:
        """The class that goes next, of those that wait (one does); `price` is what the next one of a class is expected to cost."""
        first = waiting.index(True)
        for rank in range(first + 1, len(CLASSES)):
            saved = self.saved[rank] + _ROUNDING
            if waiting[rank] and saved > 1 and saved >= min(price(rank), MOST_SAVED):
                return rank
        return first

    def start(self, rank: int, cost: float, waiting: Seq[bool]) -> Paid:
        if not any(waiting[:rank]):
            return Paid(rank)
        self.saved[rank] -= cost
        return Paid(rank, overtook=True, left=cost)

    def stop(self, paid: Paid) -> None:
        self.saved[paid.rank] += paid.left
        paid.left = 0.0

    def charge(self, paid: Paid, cost: float) -> None:
        """`cost` was served. It takes effect with `settle`."""
        rank = paid.rank
        self._is_settled = False
        self._spent[rank] += cost
        if paid.overtook:
            used = min(cost, paid.left)
            paid.left -= used
            self._set_aside[rank] += used
            self._overdrawn[rank] += cost - used

    def settle(self, waiting: Seq[bool], running: Seq[bool]) -> None:
        """Who has waited since the last time saves a share of all that was served, and whose it was pays. To be called before
        anybody comes, starts, ends or is chosen."""
        if self._is_settled:
            return
        total = sum(self._spent)
        for rank in range(1, len(CLASSES)):
            share, spent = SHARES[rank] * total, self._spent[rank]
            if running[rank]:
                self.steps[rank] = max(-TURN, min(TURN, self.steps[rank] + share - spent))
            gained = share if waiting[rank] else 0.0
            self.saved[rank] = min(MOST_SAVED, self._after(rank, gained, pressed=any(waiting[:rank])))
        self._spent, self._set_aside, self._overdrawn, self._is_settled = _zeros(), _zeros(), _zeros(), True

    def _after(self, rank: int, gained: float, *, pressed: bool) -> float:
        saved, debt = self.saved[rank], self._overdrawn[rank]
        free = self._spent[rank] - self._set_aside[rank] - debt
        if not pressed:
            # Nobody above waits for what it takes: that is no debt, and pays one back.
            free += debt
            if saved < 0:
                return min(0.0, saved + free) + gained
            debt = 0.0
        # Without having overtaken anybody it can use up what it has saved, and owes nothing beyond.
        return max(saved + gained - free, min(saved, 0.0)) - debt

    def idle(self, rank: int) -> None:
        """Nothing of the class is in work: what it was owed is void."""
        self.saved[rank] = min(0.0, self.saved[rank])
        self.steps[rank] = min(0.0, self.steps[rank])

    def owes_step(self, rank: int) -> bool:
        """Whether a running prompt of the class goes before those of higher ones now."""
        return self.steps[rank] >= TURN - _ROUNDING

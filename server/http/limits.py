"""Whether a request may come in: the limits of its key (429) and of the server's queue (503), told before any work is done for it.

The engine keeps the same queue limit; here it is known at once, before a template is rendered or a text tokenised. Knows no dialect.
"""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from server.errors import ClientError, RateLimited, ServerBusy
from server.http.auth import API_KEY
from server.http.context import CONTEXT
from server.http.keys import ApiKey
from server.http.ledger import CHARS_PER_TOKEN, Account, Ledger, Ticket

LEDGER = web.AppKey("ledger", Ledger)
TICKET: web.RequestKey[Ticket] = web.RequestKey("ticket", Ticket)


@web.middleware
async def release(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives back what `admit` has booked, however the request ends."""
    try:
        return await handler(request)
    finally:
        ticket = request.get(TICKET)
        if ticket is not None:
            ticket.close()


def check(request: web.Request) -> None:
    """To be called before the body is read: raises as `admit` does where not even one sequence may come in. Books nothing."""
    _check(request, 1, 0)


def admit(request: web.Request, *, n_sequences: int, n_chars: int) -> None:
    """Book a place for every sequence of a request, once per request, before anything is rendered or tokenised.

    `n_chars`: characters of all its prompts together, about. No await lies between check and booking, so no two can have one place.

    Raises:
        RateLimited: its key has too many waiting, or has used up its tokens of this minute.
        ServerBusy: the server's queue is full.
        ClientError: so many sequences can never be here at once.
    """
    assert TICKET not in request, "a request is admitted once"
    _check(request, n_sequences, n_chars)
    key = request.get(API_KEY)
    request[TICKET] = request.app[LEDGER].book(key.name if key is not None else None, n_sequences, n_chars)


def _check(request: web.Request, n_sequences: int, n_chars: int) -> None:
    key = request.get(API_KEY)
    if key is not None:
        _check_key(request, key, n_sequences)
    _check_queue(request, n_sequences, n_chars)


def _check_key(request: web.Request, key: ApiKey, n_sequences: int) -> None:
    ledger, stats = request.app[LEDGER], request.app[CONTEXT].runner.stats
    account = ledger.of(key.name)
    if key.tpm is not None:
        now = ledger.clock()
        used = account.used.sum(now)
        if used >= key.tpm:
            wait = account.used.seconds_until_below(now, key.tpm)
            raise RateLimited(
                f"this API key has used {used} tokens within a minute, and its limit is {key.tpm}",
                what="tpm", limit=key.tpm, value=used, position=ledger.total.waiting, retry_after=wait,
            )  # fmt: skip
    if key.queued is not None and account.waiting + n_sequences > key.queued + _free(request, ledger.total, account, key):
        raise RateLimited(
            f"{account.waiting} requests of this API key are waiting, and its limit is {key.queued}",
            what="queued", limit=key.queued, value=account.waiting, position=ledger.total.waiting, retry_after=stats.retry_after_s,
        )  # fmt: skip


def _free(request: web.Request, total: Account, account: Account, key: ApiKey) -> int:
    """Slots that the key's sequences can have without waiting for one: those that nobody else holds or waits for."""
    others = total.waiting + total.running - account.waiting
    free = max(0, _n_slots(request) - others)
    return free if key.running is None else min(free, max(0, key.running - account.running))


def _check_queue(request: web.Request, n_sequences: int, n_chars: int) -> None:
    settings, stats, total = request.app[CONTEXT].settings, request.app[CONTEXT].runner.stats, request.app[LEDGER].total
    capacity = _n_slots(request) + settings.max_queue
    if n_sequences > capacity:
        raise ClientError(
            f"{n_sequences} sequences are more than the {capacity} that the server takes at once (--parallel and --max-queue)"
        )
    n_here = total.waiting + total.running
    n_queued = max(0, n_here - _n_slots(request))
    if n_here + n_sequences > capacity:
        raise ServerBusy(
            f"all slots are taken and {n_queued} requests are queued; the queue takes {settings.max_queue} (--max-queue)"
            if n_sequences == 1
            else f"{n_here} of {capacity} places are taken (--parallel and --max-queue), and the request needs {n_sequences}",
            waiting=n_queued, limit=settings.max_queue, position=n_queued, retry_after=stats.retry_after_s,
        )  # fmt: skip
    most, n_tokens = settings.max_queue_tokens, n_chars // CHARS_PER_TOKEN
    has_to_queue = n_here + n_sequences > _n_slots(request)
    if has_to_queue and total.waiting_tokens and 0 < most < total.waiting_tokens + n_tokens:
        raise ServerBusy(
            f"{total.waiting_tokens} prompt tokens are waiting, and the request has about {n_tokens}; the queue takes {most} "
            "(--max-queue-tokens)",
            waiting=total.waiting_tokens, limit=most, position=total.waiting, retry_after=stats.retry_after_s,
        )  # fmt: skip


def _n_slots(request: web.Request) -> int:
    info = request.app[CONTEXT].runner.info
    return info.n_slots if info is not None else 1

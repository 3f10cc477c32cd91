"""What a request says of its own urgency, patience and company: body members and headers -> engine terms, and its admission.

The body wins over headers. Whose request it is and what its key allows is `server.http.flow`'s business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from server.api.fields import GenerationFields
from server.api.options import MAX_SEQUENCES, Options
from server.api.sampling import check_range
from server.errors import ClientError
from server.http.context import CONTEXT
from server.http.flow import attributed
from server.http.limits import admit
from server.protocol import Flow, Priority
from server.requests import CLASSES
from server.settings import Settings

MAX_NAME_CHARS = 256
MAX_TIMEOUT_SECONDS = 7 * 24 * 3600.0
MAX_DRAFT = 64


@dataclass(frozen=True, slots=True)
class Wishes:
    priority: Priority | None
    """None: not said."""
    timeout_s: float | None
    session: str
    cache_salt: str
    n_draft_max: int


def parse_wishes(fields: GenerationFields, headers: Mapping[str, str], settings: Settings) -> Wishes:
    """Raises:
    ClientError: a value is no class, no number of seconds, or too long; `param` names the member or header.
    """
    return Wishes(
        _priority(fields, headers),
        _timeout(fields, headers, settings.request_timeout),
        _session(fields, headers),
        _bounded("cache_salt", fields.cache_salt),
        _n_draft_max(fields),
    )


def admitted(request: web.Request, fields: GenerationFields, options: Options, *, n_prompts: int) -> Options:
    """Book places for all sequences of a request and put in whose they are, before anything is rendered or tokenised.

    Raises:
        RateLimited, ServerBusy: a limit of its key or of the queue.
        Forbidden: it asks for a class above that of its key.
        ClientError: as `parse_wishes`, or they are too many.
    """
    wishes = parse_wishes(fields, request.headers, request.app[CONTEXT].settings)
    n_sequences = n_prompts * options.n
    if n_sequences > MAX_SEQUENCES:
        raise ClientError(
            f"{n_prompts} prompts with {options.n} choices each are more than {MAX_SEQUENCES} sequences",
            param="prompt" if n_prompts > 1 else "n",
        )
    base = msgspec.structs.replace(
        options.base,
        priority=wishes.priority or "normal",
        timeout_s=wishes.timeout_s,
        flow=Flow(session=wishes.session),
        namespace=wishes.cache_salt,
        n_draft_max=wishes.n_draft_max,
    )
    base = attributed(request, base, explicit_priority=wishes.priority is not None)
    admit(request, n_sequences=n_sequences, n_chars=request.content.total_bytes)
    return dataclasses.replace(options, base=base)


def _priority(fields: GenerationFields, headers: Mapping[str, str]) -> Priority | None:
    name, given = ("priority", fields.priority) if fields.priority is not None else ("X-Priority", headers.get("X-Priority"))
    if given is None:
        return None
    if given not in CLASSES:
        raise ClientError(f"{name}: there is no class {str(given)[:40]!r}; the classes are {', '.join(CLASSES)}", param=name)
    return given


def _timeout(fields: GenerationFields, headers: Mapping[str, str], most: float) -> float | None:
    """`most`: the server's own limit, 0 = none; a request may ask for less, not for more."""
    name, given = "timeout", fields.timeout
    if given is None and (text := headers.get("X-Request-Timeout")) is not None:
        name = "X-Request-Timeout"
        try:
            given = float(text)
        except ValueError:
            raise ClientError(f"{name}: {text[:40]!r} is no number of seconds", param=name) from None
    if given is None:
        return most or None
    if not 0 < given <= MAX_TIMEOUT_SECONDS:
        raise ClientError(f"{name} must be more than 0 and at most {MAX_TIMEOUT_SECONDS:g} seconds", param=name)
    return min(given, most) if most else given


def _session(fields: GenerationFields, headers: Mapping[str, str]) -> str:
    """The first that says something: what is meant for this, then what other servers know a client or a conversation by."""
    given = {
        "session": fields.session,
        "session_id": fields.session_id,
        "X-Session-Id": headers.get("X-Session-Id"),
        "safety_identifier": fields.safety_identifier,
        "user": fields.user,
        "prompt_cache_key": fields.prompt_cache_key,
    }
    return next(filter(None, [_bounded(name, text) for name, text in given.items()]), "")


def _bounded(name: str, given: str | None) -> str:
    if given is None:
        return ""
    if len(given) > MAX_NAME_CHARS:
        raise ClientError(f"{name} has {len(given)} characters; at most {MAX_NAME_CHARS} are accepted", param=name)
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ClientError(f"{name} is not valid UTF-8", param=name) from None
    return given


def _n_draft_max(fields: GenerationFields) -> int:
    value = fields.n_draft_max
    if value is None and fields.speculative is not None:
        value = fields.speculative.n_max
    return -1 if value is None else int(check_range("speculative.n_max", value, 0, MAX_DRAFT))

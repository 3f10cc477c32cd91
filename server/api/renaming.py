"""Dialects call the same member by different names; errors about it say the one that the client has written. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from server.errors import ClientError


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Inside, an error about a member that is a key of `names` is raised under its other name."""
    try:
        yield
    except ClientError as error:
        given = names.get(error.param or "")
        if given is not None:
            error.message = error.message.replace(error.param or "", given, 1)
            error.param = given
        raise

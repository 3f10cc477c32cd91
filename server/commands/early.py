"""Mistakes that would only be found behind the printed address or in the runner, but can be told before anything is started."""

from __future__ import annotations

from server.settings import Settings


def check_hardware(settings: Settings) -> None:
    """Whether this build has what --cpu-variant and --device name; whether it works on this machine, the runner finds out.

    Raises:
        OperatorError: it has not.
    """
    if settings.cpu_variant is not None or settings.device != "auto":
        from server.llama.backends import check_names  # loads no native code

        check_names(settings.cpu_variant, settings.device)


def check_access(settings: Settings) -> None:
    """Whether the keys and the lists of hosts and origins can be used.

    Raises:
        OperatorError: they cannot.
    """
    if settings.api_key is not None or settings.api_key_file is not None:
        from server.http.keys import KeyRing

        KeyRing.of(settings.api_key, settings.api_key_file)
    if settings.allowed_hosts is not None or settings.cors_origins is not None:
        from server.http.hosts import Rules

        Rules.parse(settings.allowed_hosts, settings.cors_origins)

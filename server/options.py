"""Reads the four sources of settings (flag > environment > embedded > default) and remembers where each value came from.

A flag is written as in `settings.py`, with `-` or `_`, as `--flag value` or `--flag=value`; a yes/no setting also as `--no-flag`.
`CAPSULE_<NAME>` sets the setting of that name; an empty variable counts as absent. Arguments embedded in the file may set only
what is marked `embed`; a file that carries any other is refused with a sentence, since somebody else wrote it.
It must not know what the settings do; which values are allowed is `checks.py`'s business.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from server.errors import OperatorError
from server.settings import Settings

Origin = Literal["flag", "environment", "embedded", "default"]
ENVIRONMENT_PREFIX = "CAPSULE_"
OTHER_VARIABLES = ("CAPSULE_CACHE_DIR",)
"""Variables of ours that are no settings."""
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_EMBEDDED = "the arguments inside the file: "


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table in `settings.py`."""

    name: str
    kind: Literal["bool", "int", "float", "str"]
    default: Any
    flags: tuple[str, ...]
    help: str
    group: str
    embed: bool
    secret: bool
    metavar: str

    @property
    def flag(self) -> str:
        """The long name, for messages."""
        return next(flag for flag in self.flags if flag.startswith("--"))

    @property
    def negation(self) -> str | None:
        """`--no-x` of a yes/no setting; a setting that is itself called `no_x` has none."""
        return None if self.kind != "bool" or self.name.startswith("no_") else "--no-" + self.flag[2:]

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of this start and the origin of every one of them."""

    settings: Settings
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...] = ()

    def given(self, name: str) -> bool:
        """Whether the person at this machine set it (not the file, not the default)."""
        return self.origins[name] in ("flag", "environment")

    def replace(self, **values: Any) -> Options:
        """Other values with the origins kept."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, **values))

    def described(self) -> dict[str, dict[str, Any]]:
        """name -> {"value", "origin"}; a secret shows as `set`, never by value."""
        return {
            option.name: {"value": shown(option, getattr(self.settings, option.name)), "origin": self.origins[option.name]}
            for option in table()
        }


def shown(option: Option, value: Any) -> Any:
    return "set" if option.secret and value is not None else value


@functools.cache
def table() -> tuple[Option, ...]:
    """Every setting, in the order of `settings.py`."""
    rows = []
    for field in dataclasses.fields(Settings):
        kind = str(field.type).removesuffix(" | None")
        meta = field.metadata
        rows.append(
            Option(
                name=field.name,
                kind=kind,  # type: ignore[arg-type]
                default=field.default,
                flags=meta["flags"],
                help=meta["help"],
                group=meta["group"],
                embed=meta["embed"],
                secret=meta["secret"],
                metavar=meta["metavar"] or "",
            )
        )
    return tuple(rows)


@functools.cache
def _by_flag() -> dict[str, tuple[Option, bool]]:
    """Flag as typed (normalised) -> the setting, and whether it says no."""
    found: dict[str, tuple[Option, bool]] = {}
    for option in table():
        for flag in option.flags:
            found[flag] = (option, False)
        if option.negation:
            found[option.negation] = (option, True)
    return found


def load(argv: Sequence[str], environment: Mapping[str, str], embedded: Sequence[str] = ()) -> Options:
    """Merge the sources. `embedded` are the arguments stored inside the file, as `parse_embedded` gives them.

    Raises:
        OperatorError: an unknown flag, a value of the wrong type, or an embedded argument that a file may not set.
    """
    values: dict[str, Any] = {option.name: option.default for option in table()}
    origins: dict[str, Origin] = dict.fromkeys(values, "default")

    def take(found: Iterable[tuple[Option, Any]], origin: Origin) -> None:
        for option, value in found:
            values[option.name], origins[option.name] = value, origin

    take(_scan_embedded(embedded), "embedded")
    from_environment, warnings = _environment(environment)
    take(from_environment, "environment")
    take(_scan(argv), "flag")
    return Options(Settings(**values), origins, tuple(warnings))


def parse_embedded(text: str) -> list[str]:
    """Split and validate arguments that are to be, or are, stored inside a file (shell quoting; lines or spaces between them).

    Raises:
        OperatorError: bad quoting, an unknown flag, a wrong value, or a flag that a file may not set; the message names it.
    """
    import shlex

    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise OperatorError(f"{_EMBEDDED}{str(error).lower()}", hint="quote a value that contains spaces: --alias 'my model'") from None
    _scan_embedded(argv)
    return argv


def _scan_embedded(argv: Sequence[str]) -> list[tuple[Option, Any]]:
    found = _scan(argv, source=_EMBEDDED)
    for option, _ in found:
        if not option.embed:
            allowed = ", ".join(o.flag for o in table() if o.embed)
            raise OperatorError(
                f"{_EMBEDDED}{option.flag} cannot be set by a file, only by whoever starts it", hint=f"a file may set: {allowed}"
            )
    return found


def _scan(argv: Sequence[str], *, source: str = "") -> list[tuple[Option, Any]]:
    """What the arguments set, in their order (the last one wins)."""
    found: list[tuple[Option, Any]] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if sys.platform == "darwin" and word.startswith("-psn_"):
            continue  # Finder hands over a process serial number
        name, has_value, text = word.partition("=")
        flag = _normalised(name)
        if flag not in _by_flag():
            raise _unknown(word, flag, source)
        option, negated = _by_flag()[flag]
        if option.kind == "bool":
            value = _parse(option, text, f"{source}{name}") if has_value else True
            found.append((option, value != negated))
            continue
        if not has_value:
            if not rest or (option.kind == "str" and _normalised(rest[0].partition("=")[0]) in _by_flag()):
                raise OperatorError(f"{source}{name} needs a value", hint=f"{name} {option.metavar}: {option.help}")
            text = rest.pop(0)
        found.append((option, _parse(option, text, f"{source}{name}")))
    return found


def _environment(environment: Mapping[str, str]) -> tuple[list[tuple[Option, Any]], list[str]]:
    found: list[tuple[Option, Any]] = []
    known = set(OTHER_VARIABLES)
    for option in table():
        known.add(option.variable)
        if text := environment.get(option.variable, ""):
            found.append((option, _parse(option, text, f"{option.variable} ({option.flag})")))
        if option.negation:
            negated = f"{ENVIRONMENT_PREFIX}NO_{option.name.upper()}"
            known.add(negated)
            if text := environment.get(negated, ""):
                found.append((option, not _parse(option, text, f"{negated} ({option.negation})")))
    warnings = []
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in known:
            continue
        near = _nearest(name.removeprefix(ENVIRONMENT_PREFIX), [one.removeprefix(ENVIRONMENT_PREFIX) for one in known])
        if near:
            warnings.append(f"the environment variable {name} means nothing here; did you mean {ENVIRONMENT_PREFIX}{near}?")
    return found, warnings


def _normalised(word: str) -> str:
    """`--ctx_size` and `--ctx-size` are one flag; short flags are taken as they are."""
    return "--" + word[2:].replace("_", "-") if word.startswith("--") else word


def _parse(option: Option, text: str, name: str) -> Any:
    """Raises OperatorError that names the flag or variable and the value."""
    if option.kind == "str":
        return text
    if option.kind == "bool":
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise OperatorError(f"{name}: {text!r} is neither yes nor no", hint="use 1 or 0, true or false, yes or no, on or off")
    try:
        if option.kind == "int":
            return int(text)
        number = float(text)
        if number - number != 0:  # infinite or not a number
            raise ValueError(text)
        return number
    except ValueError:
        kind = "a whole number" if option.kind == "int" else "a number"
        raise OperatorError(f"{name}: {text!r} is not {kind}", hint=f"{option.flag} {option.metavar}: {option.help}") from None


def _unknown(word: str, flag: str, source: str) -> OperatorError:
    if not word.startswith("-"):
        if word.lower().endswith(".gguf"):
            return OperatorError(f"{source}unexpected argument {word!r}", hint=f"to use these weights: -m {word}")
        return OperatorError(f"{source}unexpected argument {word!r}", hint="every setting has a flag; --help lists them")
    near = _nearest(flag, _by_flag())
    hint = f"did you mean {near}? --help lists all flags" if near else "--help lists all flags"
    shown_word = word.partition("=")[0]
    return OperatorError(f"{source}unknown flag {shown_word}", hint=hint)


def _nearest(word: str, known: Iterable[str]) -> str | None:
    import difflib

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return found[0] if found else None

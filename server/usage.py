"""What `--help` and `chat --help` print: commands, then every setting by group with its value and where that came from, 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from server.checks import checked
from server.errors import OperatorError
from server.options import Option, Options, load, shown, table

WIDTH = 80
_INDENT = 28
_GROUPS = {
    "model": "Model",
    "scheduling": "Scheduling",
    "hardware": "Hardware",
    "generation": "Generation (each request may say otherwise)",
    "server": "Server",
    "log": "Log",
}
_NOT_CHAT = frozenset({"server"})
_INTRO = """\
{program} {version}: a language model and the server that runs it, in one file.

Usage: {program} [COMMAND] [FLAGS]

  serve                     serve the chat page and the API (the default)
  chat                      chat in the terminal
  bundle WEIGHTS -o FILE    write a new executable with other weights in it
  inspect [FILE]            show what is inside a file
  --help, -h                this text
  --version                 the version
  --licenses                the licences of everything inside

{flags}"""
_CHAT_INTRO = """\
{program} chat: a conversation with the model in the terminal, without a server.

Usage: {program} chat [FLAGS]

Every line is a turn; so are lines pasted together, and all lines between two
lines of three quotation marks. Ctrl-C stops an answer, Ctrl-D ends the chat,
/help lists what can be typed. From a pipe or a file the whole input is one
turn, and the output is the answer and nothing else.

{flags}"""
_FLAGS = """\
Write flags with - or _, as --flag VALUE or --flag=VALUE. A setting comes from
its flag, else from the environment ({example}), else from the
arguments inside this file, else it is the default. In brackets: the value
without flags, and where it comes from if it is not the default.
"""


def help_text(program: str, version: str, environment: Mapping[str, str], embedded: Sequence[str] = (), *, command: str = "serve") -> str:
    """The whole text for `serve` or `chat`. Broken variables or embedded arguments are named at the end instead of ending the help."""
    trouble = ""
    try:
        options = checked(load([], environment, embedded))
    except OperatorError as error:
        options = load([], {})
        trouble = f"\nNot applied above: {error.message}\n"
    intro, left_out = (_CHAT_INTRO, _NOT_CHAT) if command == "chat" else (_INTRO, frozenset())
    parts = [intro.format(program=program, version=version, flags=_FLAGS.format(example="CAPSULE_CTX_SIZE=8192"))]
    for group, title in _GROUPS.items():
        if group in left_out:
            continue
        parts.append(f"{title}\n" + "".join(_row(option, options) for option in table() if option.group == group))
    return "\n".join(parts) + trouble


def _row(option: Option, options: Options) -> str:
    names = ", ".join((*option.flags, *([option.negation] if option.negation and option.default else ())))
    head = f"  {names} {option.metavar}".rstrip()
    text = f"{option.help} {_value(option, options)}".rstrip()
    body = textwrap.wrap(text, WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False) or [""]
    if len(head) + 2 <= _INDENT:
        lines = [head.ljust(_INDENT) + body[0], *(" " * _INDENT + line for line in body[1:])]
    else:
        lines = [
            head,
            *(" " * _INDENT + line for line in body),
        ]
    return "\n".join(lines) + "\n"


def _value(option: Option, options: Options) -> str:
    origin = options.origins[option.name]
    value = shown(option, getattr(options.settings, option.name))
    if origin == "default" and (value is None or "default:" in option.help):
        return ""
    if option.name == "seed" and origin == "default":
        value = -1
    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, str) and len(value) > 40:
        value = value[:37] + "..."
    source = {"environment": f", from {option.variable}", "embedded": ", from inside this file"}.get(origin, "")
    return f"[{value}{source}]".replace("\n", " ")

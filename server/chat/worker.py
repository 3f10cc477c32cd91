"""The render child's loop: one template, one request at a time, within bounds of memory and time. Knows nothing of the front.

The front kills a child that is late; the bounds here hold also when the front is gone, since a child that renders does not see
the end of its input.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import IO

from server.chat import wire
from server.chat.messages import InputRefused
from server.chat.template import ChatTemplate, TemplateBroken
from server.framing import read_frame, write_frame
from server.pipes import printable


def limit_memory(mib: int) -> None:
    """Let this process grow by `mib` MiB and no further. Linux only; elsewhere the time limit has to do (unverified there)."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    limit = mapped + mib * 1024 * 1024
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def serve(commands: IO[bytes], replies: IO[bytes], timeout_s: float, memory_mib: int) -> None:
    """Answer until `commands` ends, or until the memory was used up once (the rest of this process is not to be trusted then)."""
    limit_memory(memory_mib)
    write_frame(replies, wire.encode(wire.Hello()))
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        template: ChatTemplate | TemplateBroken | None = None
        while (body := read_frame(commands)) is not None:
            # Ends this process from a thread that needs no GIL, so also in the middle of one long C call.
            faulthandler.dump_traceback_later(2 * timeout_s + 1, exit=True, file=nowhere)
            reply: wire.Reply | None = None
            try:
                command = wire.decode_command(body)
                if isinstance(command, wire.Configure):
                    template = _compile(command)
                else:
                    assert template is not None, "Configure comes first"
                    reply = _render(template, command)
                encoded = b"" if reply is None else wire.encode(reply)
            except MemoryError:
                template = None
                write_frame(replies, wire.encode(wire.Refused("memory", "")))
                return
            if encoded:
                write_frame(replies, encoded)
            faulthandler.cancel_dump_traceback_later()


def _compile(command: wire.Configure) -> ChatTemplate | TemplateBroken:
    try:
        return ChatTemplate(command.template, command.bos_token, command.eos_token)
    except TemplateBroken as error:
        return error


def _render(template: ChatTemplate | TemplateBroken, command: wire.Render) -> wire.Rendered | wire.Refused:
    if isinstance(template, TemplateBroken):
        return wire.Refused("template", printable(str(template)))
    try:
        text = template.render(
            command.messages,
            add_generation_prompt=command.add_generation_prompt,
            continue_final=command.continue_final,
            variables=command.variables,
        )
        text.encode()  # a template can make half a surrogate pair out of an escape
    except InputRefused as error:
        return wire.Refused("input", printable(str(error)), error.param)
    except TemplateBroken as error:
        return wire.Refused("template", printable(str(error)))
    except UnicodeEncodeError:
        return wire.Refused("template", "it makes characters that do not exist")
    if len(text) > wire.MAX_OUTPUT_CHARS:
        return wire.Refused("input", f"the chat template makes a prompt of more than {wire.MAX_OUTPUT_CHARS} characters", "messages")
    return wire.Rendered(text)

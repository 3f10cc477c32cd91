"""A template may loop, swallow memory or crash: its child is replaced, its request refused, and everybody else is served on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from server.chat.renderer import N_CHILDREN, Renderer
from server.errors import CapsuleError, ClientError, ModelLoading, PayloadTooLarge, ShuttingDown
from tests.unit.chat.samples import SMOLLM2

pytestmark = pytest.mark.asyncio

ROOT = Path(__file__).resolve().parents[3]
ARGV = [
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from server.commands.render import main; sys.exit(main(sys.argv[1:]))",
]
TRAP = """{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}
{%- if messages[0].content == 'long call' %}{{ 9 ** (100000000 * (messages | length)) % 7 }}{% endif %}
{%- if messages[0].content == 'memory' %}{{ ('a' * 1500000000) | length }}{% endif %}
{%- if messages[0].content == 'pad' %}{{ 'a' | center(1500000000) | length }}{% endif %}
{%- if messages[0].content == 'list' %}{{ ([0] * 1500000000) | length }}{% endif %}
{%- if messages[0].content == 'refuse' %}{{ raise_exception('not \x1b[1mthis') }}{% endif %}
{%- if messages[0].content == 'half' %}{{ "\\ud800" }}{% endif %}
{%- if messages[0].content == 'peek' %}{{ messages.__class__.__base__.__subclasses__() }}{{ ''.__class__.mro() }}{% endif %}
{{- messages[-1].content }}"""


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


@asynccontextmanager
async def rendering(template: str | None, timeout_s: float = 30.0, memory_mib: int = 512) -> AsyncIterator[Renderer]:
    renderer = Renderer(timeout_s, memory_mib, argv=ARGV)
    await renderer.start(template, "<s>", "</s>")
    try:
        yield renderer
    finally:
        await renderer.stop()


async def test_renders_in_the_child() -> None:
    async with rendering(SMOLLM2) as renderer:
        system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        for text in ("Hi", "\U0001f469‍\U0001f4bb 你好\0", "", "x" * 1_000_000):
            assert await renderer.render([user(text)]) == f"{system}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        assert len(renderer._children) <= N_CHILDREN


async def test_options_and_variables_are_handed_over() -> None:
    async with rendering("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}{{ x }}{{ messages[-1].content }}") as renderer:
        assert await renderer.render([user("a")], x=[1]) == "<s></s>True[1]a"
        assert await renderer.render([user("a")], add_generation_prompt=False) == "<s></s>Falsea"
        assert await renderer.render([{"role": "assistant", "content": "a"}], continue_final=True) == "<s></s>Falsea"
        with pytest.raises(ClientError) as caught:
            await renderer.render([user("a")], messages=[])
        assert caught.value.param == "chat_template_kwargs"


async def test_many_at_once_get_their_own_text() -> None:
    async with rendering(None) as renderer:
        texts = await asyncio.gather(*(renderer.render([user(str(i))]) for i in range(200)))
        assert texts == [f"<|im_start|>user\n{i}<|im_end|>\n<|im_start|>assistant\n" for i in range(200)]
        assert len(renderer._children) == N_CHILDREN


@pytest.mark.parametrize("trap", ["loop", "long call"])
async def test_a_template_that_takes_too_long_is_stopped(trap: str) -> None:
    async with rendering(TRAP, timeout_s=1.0) as renderer:
        with pytest.raises(ClientError, match="did not finish") as caught:
            await renderer.render([user(trap)])
        assert caught.value.param == "messages"
        assert await renderer.render([user("next")]) == "next"


@pytest.mark.parametrize("trap", ["memory", "pad", "list"])
async def test_a_template_that_takes_too_much_memory_is_stopped(trap: str) -> None:
    async with rendering(TRAP) as renderer:
        with pytest.raises(ClientError, match="memory"):
            await renderer.render([user(trap)])
        assert await renderer.render([user("next")]) == "next"


async def test_a_trap_in_constants_is_stopped_too() -> None:
    """Jinja computes such an expression while it compiles."""
    async with rendering("{{ 'a' | center(1500000000) }}{{ messages[0].content }}") as renderer:
        with pytest.raises(ClientError, match="memory|crashed"):
            await renderer.render([user("x")])


async def test_one_slow_render_does_not_hold_up_the_others() -> None:
    async with rendering(TRAP, timeout_s=5.0) as renderer:
        await asyncio.gather(*(renderer.render([user("x")]) for _ in range(8)))  # both children are there
        slow = asyncio.create_task(renderer.render([user("loop")]))
        await asyncio.sleep(0)
        assert [await renderer.render([user(str(i))]) for i in range(20)] == [str(i) for i in range(20)]
        assert not slow.done()
        with pytest.raises(ClientError):
            await slow


async def test_a_refusal_names_the_reason_without_control_characters() -> None:
    async with rendering(TRAP) as renderer:
        with pytest.raises(ClientError, match=r"not \\x1b\[1mthis"):
            await renderer.render([user("refuse")])


async def test_a_broken_template_is_not_the_clients_fault() -> None:
    async with rendering("{% if %}") as renderer:
        for _ in range(2):
            with pytest.raises(CapsuleError, match="broken: line 1") as caught:
                await renderer.render([user("x")])
            assert caught.value.status == 500
    async with rendering(TRAP) as renderer:
        for content in ("half", "peek"):
            with pytest.raises(CapsuleError, match="broken"):
                await renderer.render([user(content)])
        assert await renderer.render([user("next")]) == "next"


async def test_what_cannot_be_handed_over_is_the_clients_error() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    async with rendering(None) as renderer:
        for content in ("\ud800", deep, [{"type": "text", "text": 2**70}]):
            with pytest.raises(ClientError):
                await renderer.render([user(content)])
        with pytest.raises(PayloadTooLarge):
            await renderer.render([user("x" * 70_000_000)])
        assert "next" in await renderer.render([user("next")])


async def test_a_child_that_died_while_idle_is_replaced() -> None:
    async with rendering(None) as renderer:
        await renderer.render([user("x")])
        for child in renderer._children:
            os.kill(child.pid, signal.SIGKILL)
            child._popen.wait()
        assert "next" in await renderer.render([user("next")])


async def test_a_caller_that_leaves_takes_no_child_with_it() -> None:
    async with rendering(TRAP, timeout_s=0.5) as renderer:
        tasks = [asyncio.create_task(renderer.render([user(text)])) for text in ("loop", "a", "b", "c")]
        await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await renderer.render([user("next")]) == "next"
        assert renderer._n_waiting == 0


async def test_another_template_replaces_the_first() -> None:
    async with rendering("one") as renderer:
        assert await renderer.render([user("x")]) == "one"
        await renderer.start("two", "", "")
        assert [await renderer.render([user("x")]) for _ in range(3)] == ["two"] * 3


async def test_before_start_and_after_stop() -> None:
    renderer = Renderer(argv=ARGV)
    with pytest.raises(ModelLoading):
        await renderer.render([user("x")])
    await renderer.start(TRAP, "", "")
    await renderer.render([user("x")])
    pids = [child.pid for child in renderer._children]
    busy = asyncio.create_task(renderer.render([user("loop")]))
    await asyncio.sleep(0.1)
    await renderer.stop()
    with pytest.raises(CapsuleError):
        await busy
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(ShuttingDown):
        await renderer.render([user("x")])


async def test_a_program_that_cannot_start_is_a_plain_error() -> None:
    for argv in (["/nonexistent/program"], [sys.executable, "-c", "raise SystemExit(1)"]):
        renderer = Renderer(argv=argv)
        await renderer.start(None, "", "")
        with pytest.raises(CapsuleError, match="start"):
            await renderer.render([user("x")])
        await renderer.stop()


async def test_the_front_side_loads_no_jinja_and_the_child_no_web_server() -> None:
    front = "import sys, server.chat.renderer; print([m for m in ('jinja2', 'aiohttp', 'llama_cpp') if m in sys.modules])"
    child = "import sys, server.chat.worker; print([m for m in ('aiohttp', 'asyncio', 'llama_cpp', 'server.protocol') if m in sys.modules])"
    for code in (front, child):
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == "[]"

"""A front process with children, to be killed: a runner and two render children, all of them idle or all of them busy.

Arguments: a directory, "idle" or "busy". Prints the children's process ids as JSON when it is in that state.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from server.chat.renderer import Renderer
from server.runners.runner import Runner
from tests.unit.runners.harness import ask, settings, spawn, until

ROOT = Path(__file__).resolve().parents[3]
RENDER = [
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from server.commands.render import main; sys.exit(main(sys.argv[1:]))",
]
TEMPLATE = "{% for a in range(99999 if messages[0].content == 'loop' else 1) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def main(home: Path, when: str) -> None:
    renderer = Renderer(timeout_s=1.0 if when == "busy" else 30.0, argv=RENDER)
    await renderer.start(TEMPLATE, "", "")
    runner = Runner(settings(home), spawn=spawn)
    await runner.start()
    await runner.wait_ready(60)
    talk = [{"role": "user", "content": "short"}]
    await asyncio.gather(*(renderer.render(talk) for _ in range(8)))
    async with runner.generate(ask("flood 1000000")) as events:
        if when == "busy":
            loops = [asyncio.create_task(renderer.render([{"role": "user", "content": "loop"}])) for _ in range(2)]
            await until(lambda: len(events._buffer) > 2 and not renderer._idle)
        assert runner.pid is not None
        print(json.dumps([runner.pid, *(child.pid for child in renderer._children)]), flush=True)
        await asyncio.sleep(600)
        del loops


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

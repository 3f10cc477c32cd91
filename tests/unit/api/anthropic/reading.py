"""Questions to /v1/messages, and reading its streams as strictly as its clients do."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.http.live import Live

PATH = "/v1/messages"
BODY: dict[str, Any] = {"model": "claude", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
WEATHER = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
TIME = {"name": "get_time", "input_schema": {"type": "object"}}


async def ask(live: Live, **body: Any) -> dict[str, Any]:
    status, reply = await live.post(PATH, {**BODY, **body})
    assert status == 200, reply
    found: dict[str, Any] = reply
    return found


def named_events(content: bytes) -> list[dict[str, Any]]:
    """Every event's data; its name must be its type."""
    found = []
    for block in content.decode().split("\n\n"):
        if block.startswith("event: "):
            name, _, data = block.partition("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert found[-1]["type"] == name.removeprefix("event: ")
        else:
            assert not block.startswith("data"), "an event without a name is lost on Anthropic's clients"
    return found


async def streamed(live: Live, **body: Any) -> list[dict[str, Any]]:
    status, content = await live.post(PATH, {**BODY, "stream": True, **body})
    assert status == 200, content
    return named_events(content)


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream adds up to; fails where the order of events is wrong."""
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop" and events[-2]["type"] == "message_delta"
    message: dict[str, Any] = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    block: dict[str, Any] | None = None
    arguments = ""
    for event in events[1:-2]:
        if event["type"] == "ping":
            continue
        assert event["index"] == len(message["content"])
        match event["type"]:
            case "content_block_start":
                assert block is None
                block, arguments = dict(event["content_block"]), ""
                assert block["type"] != "tool_use" or block["input"] == {}
            case "content_block_delta":
                assert block is not None
                delta = event["delta"]
                if delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    member = delta["type"].removesuffix("_delta")
                    block[member] += delta[member]
            case "content_block_stop":
                assert block is not None
                if block["type"] == "tool_use":
                    block["input"] = json.loads(arguments)
                message["content"].append(block)
                block = None
            case _:
                raise AssertionError(event)
    assert block is None
    return {**message, **events[-2]["delta"], "usage": {**message["usage"], **events[-2]["usage"]}}

"""Questions to /v1/responses, and reading its streams strictly."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.http.live import Live

PATH = "/v1/responses"
WEATHER: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": True}
TIME: dict[str, Any] = {"type": "function", "name": "get_time"}


async def ask(live: Live, **body: Any) -> dict[str, Any]:
    status, reply = await live.post(PATH, {"input": "Hi", **body})
    assert status == 200, reply
    found: dict[str, Any] = reply
    return found


async def streamed(live: Live, **body: Any) -> list[dict[str, Any]]:
    status, content = await live.post(PATH, {"input": "Hi", "stream": True, **body})
    assert status == 200, content
    found = []
    for block in content.decode().split("\n\n"):
        if block and not block.startswith(":"):
            name, _, data = block.partition("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}" and found[-1]["sequence_number"] == len(found) - 1
    return found


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that a stream ends with; fails where the events before it do not add up to it."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    response: dict[str, Any] = events[-1]["response"]
    is_open, texts = False, ""
    parts: list[Any] = []
    items: list[Any] = []
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "in_progress":
            continue
        if kind == "output_item.added":
            assert not is_open and event["output_index"] == len(items)
            is_open, texts, parts, item_id = True, "", [], event["item"]["id"]
            assert event["item"]["status"] == "in_progress"
            continue
        assert is_open and event["output_index"] == len(items) and event.get("item_id", item_id) == item_id
        if kind.endswith("part.added"):
            assert event["part"]["text"] == ""
        elif kind.endswith(".delta"):
            texts += event["delta"]
        elif kind.endswith(("text.done", "arguments.done")):
            assert texts == event.get("text", event.get("arguments"))
        elif kind.endswith("part.done"):
            assert event["part"]["text"] == texts
            parts.append(event["part"])
        else:
            assert kind == "output_item.done" and event["item"]["id"] == item_id
            item = event["item"]
            assert parts == (item.get("content") or item.get("summary") or [])
            assert item.get("arguments", texts) == texts
            items.append(item)
            is_open = False
    assert not is_open and items == response["output"]
    return response


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one response to the next."""
    output = [{**item, "id": ""} for item in response["output"]]
    return {**response, "id": "", "created_at": 0, "completed_at": 0, "output": output}

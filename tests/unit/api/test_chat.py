"""/v1/chat/completions: what is asked reaches the engine, what it says reaches the client, whole or streamed, the same."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import ContextSizeExceeded, RunnerDied, ServerBusy
from server.protocol import RANDOM_SEED, Delta, Finished, Prefilled, Queued, Started
from tests.unit.http.fakes import Step, finished, says
from tests.unit.http.live import Live, events, running

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]


async def chunks(live: Live, **body: Any) -> list[Any]:
    status, content = await live.post(PATH, {"messages": USER, "stream": True, **body})
    assert status == 200, content
    return events(content)


@pytest.mark.asyncio
async def test_whole_answer() -> None:
    async with running() as live:
        status, reply = await live.post(PATH, {"messages": USER, "model": "whatever"})
    assert status == 200
    assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-") and reply["model"] == "tiny"
    assert reply["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop", "logprobs": None}
    ]
    assert reply["usage"] == {
        "completion_tokens": 2,
        "prompt_tokens": 5,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert reply["timings"]["predicted_per_second"] == 40.0 and reply["timings"]["prompt_n"] == 3


@pytest.mark.asyncio
async def test_stream() -> None:
    async with running() as live:
        found = await chunks(live)
    assert found.pop() == "[DONE]"
    assert len({chunk["id"] for chunk in found}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    assert [d["role"] for d in deltas if "role" in d] == ["assistant"] and "role" in deltas[0]
    assert "".join(d.get("content") or "" for d in deltas) == "Hello"
    assert [chunk["choices"][0]["finish_reason"] for chunk in found] == [None] * (len(found) - 1) + ["stop"]
    assert found[-1]["timings"]["predicted_n"] == 2
    assert not any("usage" in chunk for chunk in found)


@pytest.mark.asyncio
async def test_usage_is_last_and_only_on_request() -> None:
    async with running() as live:
        found = await chunks(live, stream_options={"include_usage": True})
    assert found[-2]["choices"] == [] and found[-2]["usage"]["total_tokens"] == 7 and "timings" in found[-2]
    assert all(chunk["choices"] for chunk in found[:-2])


@pytest.mark.asyncio
async def test_choices_have_neighbouring_seeds_and_their_index() -> None:
    async with running() as live:
        status, reply = await live.post(PATH, {"messages": USER, "n": 3, "seed": 41})
        assert status == 200
        assert [r.sampling.seed for r in live.runner.requests] == [41, 42, 43]
        assert [c["index"] for c in reply["choices"]] == [0, 1, 2]
        assert reply["usage"]["prompt_tokens"] == 5 and reply["usage"]["completion_tokens"] == 6
        live.runner.requests.clear()
        found = await chunks(live, n=3)
        assert {r.sampling.seed for r in live.runner.requests} == {RANDOM_SEED}
    texts = {0: "", 1: "", 2: ""}
    for chunk in found[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == dict.fromkeys(range(3), "Hello")
    reasons = [c["finish_reason"] for chunk in found[:-1] for c in chunk["choices"] if c["finish_reason"]]
    assert reasons == ["stop"] * 3


@pytest.mark.asyncio
async def test_prompt_and_template() -> None:
    async with running() as live:
        await live.post(PATH, {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}})
        assert live.renderer.calls[-1] == {"messages": USER, "add": True, "continue": False, "enable_thinking": False}
        assert live.runner.requests[-1].prompt == "<user>Hi<assistant>" and live.runner.requests[-1].add_special

        await live.post(PATH, {"messages": [*USER, {"role": "assistant", "content": "So"}]})
        assert (live.renderer.calls[-1]["add"], live.renderer.calls[-1]["continue"]) == (False, True)

        await live.post(PATH, {"messages": [*USER, {"role": "assistant", "content": "So"}], "add_generation_prompt": True})
        assert (live.renderer.calls[-1]["add"], live.renderer.calls[-1]["continue"]) == (True, False)

        await live.post(PATH, {"messages": [{"role": "s>", "content": "x"}]})
        assert live.runner.requests[-1].prompt.startswith("<s>") and not live.runner.requests[-1].add_special


@pytest.mark.asyncio
async def test_defaults_come_from_the_settings() -> None:
    async with running(temperature=0.25, top_k=7, n_predict=33, seed=5) as live:
        await live.post(PATH, {"messages": USER, "top_p": 0.5})
        request = live.runner.requests[-1]
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.seed) == (0.25, 7, 5)
    assert request.max_tokens == 33 and request.sampling.top_p == 0.5


@pytest.mark.asyncio
async def test_both_names_of_the_limit_and_stop_forms() -> None:
    async with running() as live:
        for body, expected in (
            ({"max_tokens": 9}, 9),
            ({"max_completion_tokens": 8, "max_tokens": 9}, 8),
            ({"n_predict": 7, "max_tokens": 9}, 7),
            ({"max_tokens": None}, -1),
            ({"max_tokens": 0}, 0),
        ):
            assert (await live.post(PATH, {"messages": USER, **body}))[0] == 200
            assert live.runner.requests[-1].max_tokens == expected
        for stop, found in (("x", ("x",)), (["x", "y"], ("x", "y")), ([], ()), (None, ())):
            assert (await live.post(PATH, {"messages": USER, "stop": stop}))[0] == 200
            assert live.runner.requests[-1].stop == found


@pytest.mark.asyncio
async def test_logprobs() -> None:
    async with running() as live:
        live.runner.script = says("a", "é")
        _, reply = await live.post(PATH, {"messages": USER, "logprobs": True, "top_logprobs": 3})
        content = reply["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == ["a", "é"] and content[1]["bytes"] == [0xC3, 0xA9]
        tops = content[0]["top_logprobs"]
        assert [top["logprob"] for top in tops] == [-0.5, -1.5, -9999.0]
        assert tops[1]["token"] == "bytes:\\xf0\\x9f" and tops[1]["bytes"] == [0xF0, 0x9F]
        found = await chunks(live, logprobs=True)
        streamed = [c["choices"][0]["logprobs"]["content"][0]["token"] for c in found[:-1] if "logprobs" in c["choices"][0]]
        assert streamed == ["a", "é"] and live.runner.requests[-1].n_logprobs == 0


@pytest.mark.asyncio
async def test_progress_and_position_for_those_who_ask() -> None:
    async with running() as live:
        script: list[Step] = [Queued(1, 2, 5), Queued(1, 0, 5), Started(1, 0, 5, 0), Prefilled(1, 3, 5, 0, 7.0), Delta(1, "x"), finished(1)]
        live.runner.script = lambda request: [s for s in script if request.return_progress or not isinstance(s, Prefilled)]
        found = await chunks(live, return_progress=True)
        assert [c["queue_position"] for c in found[:-1] if "queue_position" in c] == [2, 0]
        assert [c["prompt_progress"] for c in found[:-1] if "prompt_progress" in c] == [
            {"total": 5, "cache": 0, "processed": 3, "time_ms": 7.0}
        ]
        plain = await chunks(live)
        assert not any("queue_position" in c or "prompt_progress" in c for c in plain[:-1])


@pytest.mark.asyncio
async def test_timings_per_token() -> None:
    async with running() as live:
        found = await chunks(live, timings_per_token=True)
    timed = [c for c in found[:-1] if "timings" in c]
    assert [c["timings"]["predicted_n"] for c in timed] == [1, 2, 2]
    assert not any("tokens" in c["choices"][0] for c in found[:-1])


@pytest.mark.asyncio
async def test_failures_before_the_first_token_are_ordinary_responses() -> None:
    async with running() as live:
        for error, status, type_ in (
            (ContextSizeExceeded(5000, 2048), 400, "exceed_context_size_error"),
            (ServerBusy("full", retry_after=7), 503, "unavailable_error"),
        ):
            for refuse_at_once in (True, False):
                live.runner.refusal = error if refuse_at_once else None
                live.runner.script = lambda request, error=error: [error]  # type: ignore[misc]
                for stream in (True, False):
                    found, reply = await live.post(PATH, {"messages": USER, "stream": stream})
                    assert (found, reply["error"]["type"]) == (status, type_)
    assert reply["error"]["code"] == "queue_full"


@pytest.mark.asyncio
async def test_context_size_names_the_field_and_the_numbers() -> None:
    async with running() as live:
        live.runner.script = lambda request: [ContextSizeExceeded(5000, 2048)]
        _, reply = await live.post(PATH, {"messages": USER})
        error = reply["error"]
        assert (error["param"], error["n_prompt_tokens"], error["n_ctx"]) == ("messages", 5000, 2048)
        _, reply = await live.post("/v1/completions", {"prompt": "x"})
        assert reply["error"]["param"] == "prompt"


@pytest.mark.asyncio
async def test_a_failure_in_the_stream_is_its_last_event() -> None:
    async with running() as live:
        live.runner.script = lambda request: [Queued(1, 0, 5), Delta(1, "Hel"), RunnerDied("the model's process ended")]
        found = await chunks(live)
        assert found[-1]["error"]["code"] == "runner_died" and "[DONE]" not in found
        assert [c for c in found if "error" in c] == found[-1:]
        status, reply = await live.post(PATH, {"messages": USER})
        assert status == 503 and reply["error"]["code"] == "runner_died"


@pytest.mark.asyncio
async def test_one_failed_choice_ends_all() -> None:
    async with running() as live:
        calls = iter(range(3))

        def script(request: Any) -> Any:
            return [Queued(1, 0, 5), RunnerDied("gone")] if next(calls) == 1 else [Queued(1, 0, 5), 3600.0]

        live.runner.script = script
        status, reply = await live.post(PATH, {"messages": USER, "n": 3})
        assert status == 503 and reply["error"]["code"] == "runner_died"
        assert len(live.runner.cancelled) == 2 and not live.runner.running


@pytest.mark.asyncio
async def test_an_answer_cut_by_the_shutdown_is_an_error() -> None:
    async with running() as live:
        end = finished(1, reason="cancelled", stop_type="none")
        assert isinstance(end, Finished)
        live.runner.script = lambda request: [Queued(1, 0, 5), Delta(1, "x"), end]
        status, reply = await live.post(PATH, {"messages": USER})
        assert status == 503 and reply["error"]["code"] == "shutting_down"
        assert (await chunks(live))[-1]["error"]["code"] == "shutting_down"


@pytest.mark.asyncio
async def test_nulls_and_unknown_members_count_as_absent() -> None:
    names = (
        "model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens metadata modalities n "
        "parallel_tool_calls prediction presence_penalty reasoning_effort response_format seed service_tier stop store stream "
        "stream_options temperature tool_choice tools top_logprobs top_p user web_search_options grammar json_schema id_slot samplers"
    )
    async with running() as live:
        status, reply = await live.post(PATH, {"messages": USER, **dict.fromkeys(names.split()), "x_unknown": {"a": [1]}})
        assert status == 200, reply
        harmless = {
            "tools": [],
            "tool_choice": "none",
            "response_format": {"type": "text"},
            "modalities": ["text"],
            "id_slot": -1,
            "grammar": "",
        }
        status, reply = await live.post(PATH, {"messages": USER, **harmless})
        assert status == 200, reply


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tools", {}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function"}),
        ("functions", [{}]),
        ("function_call", {"name": "f"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", "text"),
        ("grammar", "root ::= x"),
        ("json_schema", {}),
        ("modalities", ["text", "audio"]),
        ("audio", {}),
        ("web_search_options", {}),
        ("lora", [{"id": 0}]),
        ("id_slot", 1),
        ("id_slot", True),
        ("post_sampling_probs", True),
        ("t_max_predict_ms", 100),
        ("image_data", [{}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
    ],
)
@pytest.mark.asyncio
async def test_what_is_not_done_here_is_refused_by_name(member: str, value: Any) -> None:
    async with running() as live:
        status, reply = await live.post(PATH, {"messages": USER, member: value})
        assert status == 400 and reply["error"]["type"] == "not_supported_error", reply
        assert reply["error"]["param"].startswith(member) and not live.runner.requests


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{"a": 2**70}]}]}, "messages[0].tool_calls[0].a"),
        ({"messages": USER, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": USER, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": USER, "continue_final_message": True}, "continue_final_message"),
        ({"messages": USER, "n": 129}, "n"),
        ({"messages": USER, "stop": [""]}, "stop"),
        ({"messages": USER, "stop": ["x"] * 65}, "stop"),
        ({"messages": USER, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
@pytest.mark.asyncio
async def test_wrong_members_are_named(body: dict[str, Any], param: str) -> None:
    async with running() as live:
        status, reply = await live.post(PATH, body)
        assert status == 400 and reply["error"]["type"] == "invalid_request_error", reply
        assert reply["error"]["param"] == param and not live.runner.requests

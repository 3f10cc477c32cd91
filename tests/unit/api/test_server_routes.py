"""Routes about the server itself: health, models, props, slots, licences, the page; and that the spec lists every route."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]

from server.api.fields import UNSUPPORTED, GenerationFields
from server.api.native.page import make_page
from server.api.sampling import INT_MAX, RANGES
from server.protocol import Fatal, Loading
from tests.unit.http.fakes import PAGE, SECRET, State
from tests.unit.http.live import Live, running

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.asyncio
async def test_health_tells_how_far_it_is() -> None:
    async with running() as live:
        for path in ("/health", "/v1/health"):
            assert (await live.get(path)) == (200, {"status": "ok", "nonce": "nonce"})
        live.runner.state, live.runner.info = State.LOADING, None
        status, reply, headers = await live.ask("GET", "/health")
        assert status == 503 and headers["Retry-After"]
        assert (reply["status"], reply["stage"], reply["progress"]) == ("loading", "tensors", 0.25)
        assert reply["error"]["code"] == "model_loading" and "25 %" in reply["error"]["message"] and reply["nonce"] == "nonce"

        live.runner.state, live.runner.loading = State.RESTARTING, Loading("starting", 0.0)
        assert (await live.get("/health"))[1]["status"] == "restarting"
        live.runner.state, live.runner.fatal = State.FAILED, Fatal("the file is broken")
        status, reply = await live.get("/health")
        assert status == 503 and "the file is broken" in reply["error"]["message"] and "progress" not in reply
        live.runner.state, live.context.draining = State.READY, True
        status, reply = await live.get("/health")
        assert status == 503 and reply["status"] == "draining"


@pytest.mark.asyncio
async def test_health_tells_of_a_model_that_hangs() -> None:
    async with running() as live:
        live.runner.step_age_s = 90.04
        assert (await live.get("/health")) == (200, {"status": "ok", "last_step_age_seconds": 90.0, "nonce": "nonce"})
        live.runner.stalled = True
        status, reply = await live.get("/health")
        assert status == 503 and (reply["status"], reply["last_step_age_seconds"]) == ("stalled", 90.0)
        assert reply["error"]["code"] == "runner_stalled"
        status, reply = await live.post("/v1/completions", {"prompt": "x"})
        assert status == 503 and reply["error"]["code"] == "runner_stalled" and not live.runner.requests


@pytest.mark.asyncio
async def test_models() -> None:
    async with running() as live:
        for path in ("/v1/models", "/models"):
            status, reply = await live.get(path)
            assert status == 200 and reply["object"] == "list" and [m["id"] for m in reply["data"]] == ["tiny"]
        assert reply["data"][0]["meta"]["n_ctx_train"] == 2048 and reply["data"][0]["created"] > 1_600_000_000
        assert (await live.get("/v1/models/tiny"))[1]["object"] == "model"
        assert (await live.get("/v1/models/default"))[1]["id"] == "tiny"
        for name in ("other", "org/other", "tiny/x"):
            status, reply = await live.get(f"/v1/models/{name}")
            assert status == 404 and reply["error"]["param"] == "model"


@pytest.mark.asyncio
async def test_props() -> None:
    async with running(api_key="hush-key", temperature=0.3, parallel=4) as live:
        status, reply = await live.get("/props", X_Api_Key="hush-key")
    assert status == 200 and "hush-key" not in str(reply) and SECRET not in str(reply)
    assert reply["settings"]["api_key"] == {"value": "set", "origin": "flag"}
    assert reply["settings"]["temperature"] == {"value": 0.3, "origin": "flag"} and reply["settings"]["top_k"]["origin"] == "default"
    assert reply["default_generation_settings"]["n_ctx"] == 2048 and reply["default_generation_settings"]["params"]["temperature"] == 0.3
    assert reply["total_slots"] == 4 and reply["chat_template"] == "{{ messages }}" and reply["model_alias"] == "tiny"
    assert reply["hardware"]["cpu_variant"] == "haswell" and reply["deterministic"]["on"] is False
    llama_server = {
        "model_path",
        "modalities",
        "endpoint_slots",
        "endpoint_props",
        "endpoint_metrics",
        "bos_token",
        "eos_token",
        "build_info",
    }
    assert llama_server <= reply.keys()


@pytest.mark.asyncio
async def test_props_say_how_requests_are_scheduled() -> None:
    async with running(policy="fcfs", max_queue_tokens=900) as live:
        assert live.runner.info is not None
        live.runner.info = msgspec.structs.replace(live.runner.info, kv_unified=True, spec="ngram", cache_ram=77)
        _, reply = await live.get("/props")
    assert reply["scheduling"] == {
        "policy": "fcfs", "kv": "unified", "can_rewind": True, "cache_ram_bytes": 77, "speculation": "ngram", "draft_max": 8,
        "itl_target_ms": 150.0, "max_queue": 1024, "max_queue_tokens": 900, "request_timeout": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "loaded", "why_not"),
    [
        (True, {"deterministic": True, "kv_type_k": "q8_0", "kv_type_v": "q8_0", "spec": "ngram"}, None),
        (False, {"kv_type_k": "q8_0", "kv_type_v": "q8_0"}, "--deterministic"),
        (True, {"kv_type_k": "q8_0", "kv_type_v": "q8_0", "kv_unified": True}, "pool"),
        (True, {"kv_type_k": "q8_0", "kv_type_v": "f16"}, "f16"),
        (True, {"kv_type_k": "q8_0", "kv_type_v": "q8_0", "devices": ("CUDA0 (a GPU)",)}, "CUDA0"),
    ],
)
@pytest.mark.asyncio
async def test_props_promise_determinism_only_where_it_holds(asked: bool, loaded: dict[str, Any], why_not: str | None) -> None:
    async with running(deterministic=asked) as live:
        assert live.runner.info is not None
        live.runner.info = msgspec.structs.replace(live.runner.info, **loaded)
        found = (await live.get("/props"))[1]["deterministic"]
    assert found["on"] is (why_not is None) is (found["promise"] is not None)
    assert found["why_not"] is None if why_not is None else why_not in found["why_not"]
    assert found["speculation"] == loaded.get("spec", "off")


@pytest.mark.asyncio
async def test_slots() -> None:
    async with running() as live:
        status, reply = await live.get("/slots")
        assert status == 200 and [slot["is_processing"] for slot in reply] == [True, False]
        assert reply[0]["id_task"] == 9 and reply[0]["next_token"][0]["n_decoded"] == 2
        assert (await live.get("/slots?fail_on_no_slot=1"))[0] == 200
    async with running(slots=False) as live:
        status, reply = await live.get("/slots")
        assert status == 404 and "--slots" in reply["error"]["message"]


@pytest.mark.asyncio
async def test_licences_and_quit() -> None:
    async with running() as live:
        assert (await live.get("/licenses")) == (200, b"Apache-2.0 and others")
        assert (await live.post("/quit", {}, X_Capsule_Launch=SECRET)) == (200, {"status": "stopping"})
        async with asyncio.timeout(5):
            while not live.quits:
                await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_the_page_is_served_as_it_is_under_its_policy() -> None:
    async with running() as live:
        status, body, headers = await live.ask("GET", "/")
        assert status == 200 and body == PAGE and headers["Content-Type"] == "text/html; charset=utf-8"
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        script = base64.b64encode(hashlib.sha256(b"'use strict';\n1;\n").digest()).decode()
        assert policy["script-src"] == f"'sha256-{script}'" and policy["style-src"].startswith("'sha256-")
        assert policy["connect-src"] == "'self'" and policy["frame-ancestors"] == "'none'" and policy["default-src"] == "'none'"
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        status, body, again = await live.ask("GET", "/", headers={"If-None-Match": headers["ETag"]})
        assert status == 304 and not body and again["ETag"] == headers["ETag"]
        assert (await live.ask("GET", "/", headers={"If-None-Match": '"other"'}))[0] == 200
        assert (await live.ask("GET", "/?m=hello&send=1"))[1] == PAGE and not live.runner.requests
        assert (await live.get("/favicon.ico"))[0] == 204


def test_the_real_page_has_one_script_and_one_style_by_hash_and_nothing_inline() -> None:
    body = (ROOT / "server/web/index.html").read_bytes()
    policy = make_page(body).headers["Content-Security-Policy"]
    assert policy.count("'sha256-") == 2 and "unsafe" not in policy
    assert body.count(b"<script") == body.count(b"<style") == 1
    assert not re.search(rb"\sstyle=|\son[a-z]+=|javascript:", body.split(b"-->", 1)[1].split(b"<script>")[0])


def _routes_of(live: Live) -> set[tuple[str, str]]:
    found = set()
    for route in live.app.router.routes():
        assert route.resource is not None
        if route.method != "HEAD":
            found.add((route.method.lower(), route.resource.canonical))
    return found


@pytest.mark.asyncio
async def test_the_spec_lists_every_route_and_no_other() -> None:
    spec: dict[str, Any] = yaml.safe_load((ROOT / "spec/openapi.yaml").read_text(encoding="utf-8"))
    listed = {(method, path) for path, methods in spec["paths"].items() for method in methods}
    async with running() as live:
        assert listed == _routes_of(live)
    for path, methods in spec["paths"].items():
        assert set(methods) <= {"get", "post", "delete"}, "the comparison above knows these"
        for method, operation in methods.items():
            assert operation["summary"] and operation["responses"], (method, path)


def test_the_specs_references_resolve() -> None:
    text = (ROOT / "spec/openapi.yaml").read_text(encoding="utf-8")
    spec = yaml.safe_load(text)
    for reference in re.findall(r"\$ref: ['\"]?#/([A-Za-z0-9_/-]+)", text):
        node: Any = spec
        for part in reference.split("/"):
            node = node[part]


def test_the_spec_names_every_member_and_its_range() -> None:
    spec = yaml.safe_load((ROOT / "spec/openapi.yaml").read_text(encoding="utf-8"))
    listed = spec["components"]["schemas"]["GenerationFields"]["properties"]
    aliases = {"n_cmpl", "max_tokens", "max_completion_tokens"}
    assert set(listed) == set(GenerationFields.__struct_encode_fields__) - set(UNSUPPORTED) - aliases
    for name, (low, high) in RANGES.items():
        shown = listed[name]
        if "enum" not in shown:
            assert shown["minimum"] == low and shown.get("maximum", INT_MAX) == high, name

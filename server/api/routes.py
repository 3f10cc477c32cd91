"""Every route of the server, in one table. `spec/openapi.yaml` lists the same."""

from __future__ import annotations

from aiohttp import web

from server.api.anthropic import messages
from server.api.native import admin, completion, page, props, queue, status, tokens
from server.api.openai import chat, completions, models, responses


def routes() -> list[web.RouteDef]:
    return [
        web.get("/", page.page),
        web.get("/favicon.ico", page.favicon),
        web.get("/health", status.health),
        web.get("/v1/health", status.health),
        web.get("/metrics", status.metrics),
        web.get("/slots", status.slots),
        web.get("/queue", queue.queue),
        web.get("/props", props.props),
        web.get("/licenses", admin.licenses),
        web.post("/quit", admin.quit_program),
        # OpenAI
        web.get("/v1/models", models.models),
        web.get("/models", models.models),
        web.get("/v1/models/{id:.+}", models.model),
        web.post("/v1/chat/completions", chat.chat_completions),
        web.post("/chat/completions", chat.chat_completions),
        web.post("/v1/completions", completions.completions),
        web.post("/v1/responses", responses.create),
        web.post("/responses", responses.create),
        web.post("/v1/responses/input_tokens", responses.input_tokens),
        web.get("/v1/responses/{id}", responses.retrieve),
        web.delete("/v1/responses/{id}", responses.delete),
        web.get("/v1/responses/{id}/input_items", responses.input_items),
        # Anthropic; its models are at OpenAI's address
        web.post("/v1/messages", messages.messages),
        web.post("/v1/messages/count_tokens", messages.count_tokens),
        # llama-server
        web.post("/completion", completion.completion),
        web.post("/completions", completion.completion),
        web.post("/tokenize", tokens.tokenize),
        web.post("/detokenize", tokens.detokenize),
        web.post("/apply-template", tokens.apply_template),
    ]

"""Chat templates that differ in what they take, written for these tests after the habits of published ones."""

from __future__ import annotations

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ALTERNATING = """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<turn>' + role + '\n' + message['content'] | trim + '</turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"""
"""No system role, strict turns, content trimmed."""

PARTS_ONLY = """{% for message in messages %}[{{ message.role }}]{% for part in message.content %}
{%- if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
"""A multimodal model's: content is a list."""

TOOLS = """{%- for message in messages %}{{ '<' ~ message.role ~ '>' }}
{%- if message.content is not none %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{%- endfor %}{% if tools is not none %}{{ tools | tojson }}{% endif %}"""
"""Null content is its business."""

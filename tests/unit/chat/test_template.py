"""A chat template renders what its author meant, sees the names it expects, and cannot get at Python."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.chat.messages import InputRefused
from server.chat.template import CHATML, ChatTemplate, TemplateBroken
from server.gguf import read_gguf
from tests.unit.chat.samples import ALTERNATING, PARTS_ONLY, SMOLLM2, TOOLS


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_the_models_own_template_makes_exactly_its_chatml(smollm2: Path) -> None:
    source = read_gguf(smollm2).chat_template
    assert source == SMOLLM2
    template = ChatTemplate(source, "<|im_start|>", "<|im_end|>")
    assert template.render([user("Hi")]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    talk = [{"role": "system", "content": "Be brief."}, user("Hi"), {"role": "assistant", "content": "Hello."}, user(" Bye\n")]
    assert template.render(talk, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n Bye\n<|im_end|>\n"
    )


def test_a_model_without_a_template_gets_chatml() -> None:
    for missing in (None, ""):
        assert ChatTemplate(missing).render([user("Hi")]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text()), min_size=1, max_size=6))
def test_text_goes_through_unchanged(turns: list[tuple[str, str]]) -> None:
    rendered = ChatTemplate(CHATML).render([{"role": r, "content": c} for r, c in turns], add_generation_prompt=False)
    assert rendered == "".join(f"<|im_start|>{r}\n{c}<|im_end|>\n" for r, c in turns)


def test_what_the_template_raises_is_the_reason() -> None:
    with pytest.raises(InputRefused, match="must alternate") as caught:
        ChatTemplate(ALTERNATING).render([user("a"), user("b")])
    assert caught.value.param == "messages"


def test_a_system_message_joins_the_user_where_there_is_no_such_role() -> None:
    template = ChatTemplate(ALTERNATING, "<s>")
    assert (
        template.render([{"role": "system", "content": "Be brief."}, user("Hi")]) == "<s><turn>user\nBe brief.\n\nHi</turn>\n<turn>model\n"
    )
    assert template.render([{"role": "system", "content": "Hi"}], add_generation_prompt=False) == "<s><turn>user\nHi</turn>\n"


def test_content_parts_become_what_the_template_takes() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}, "three"]
    assert ChatTemplate(CHATML).render([user(parts)], add_generation_prompt=False) == "<|im_start|>user\none\ntwo\nthree<|im_end|>\n"
    template = ChatTemplate(PARTS_ONLY)
    assert template.render([user("plain"), user(parts)]) == "[user]plain[user]one\ntwo\nthree[assistant]"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (5, "messages[1].content"),
        ({"type": "text"}, "messages[1].content"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], "messages[1].content[0].type"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": None}], "messages[1].content[1]"),
        ([{"text": "a"}], "messages[1].content[0]"),
        ([7], "messages[1].content[0]"),
    ],
)
def test_other_content_is_refused_by_name(content: Any, param: str) -> None:
    with pytest.raises(InputRefused) as caught:
        ChatTemplate(CHATML).render([user("a"), user(content)])
    assert caught.value.param == param


def test_developer_is_system_unless_the_template_knows_it() -> None:
    message = {"role": "developer", "content": "x"}
    assert ChatTemplate(CHATML).render([message], add_generation_prompt=False) == "<|im_start|>system\nx<|im_end|>\n"
    knows = "{% for m in messages %}{% if m.role == 'developer' %}D{% else %}?{% endif %}{% endfor %}"
    assert ChatTemplate(knows).render([message]) == "D"


def test_null_and_missing_content_count_as_empty() -> None:
    for message in ({"role": "assistant", "content": None}, {"role": "assistant"}):
        assert (
            ChatTemplate(SMOLLM2).render([user("a"), message], add_generation_prompt=False).endswith("<|im_start|>assistant\n<|im_end|>\n")
        )
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": "ü<"}}}]}
    assert "None" not in ChatTemplate(SMOLLM2).render([call])
    assert ChatTemplate(TOOLS).render([call]) == '<assistant>{"name": "f", "arguments": {"x": "ü<"}}'
    assert ChatTemplate("{% for m in messages %}{{ m.content is none }}{{ m.content }}{% endfor %}").render([call]) == "False"


def test_messages_of_the_caller_are_left_alone() -> None:
    messages = [{"role": "developer", "content": None}, user([{"type": "text", "text": "x"}])]
    before = repr(messages)
    ChatTemplate(ALTERNATING).render(messages)
    assert repr(messages) == before


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'ü': ['<b>', '&']} | tojson }}", '{"ü": ["<b>", "&"]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ strftime_now('%Y') }}", str(datetime.datetime.now().year)),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "axb"),
        ("{{ tools is none }} {{ documents is none }} {{ pad_token is defined }}", "True True False"),
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("    {% if true %}\n  x\n    {% endif %}\ny", "  x\ny"),
        ("{%- macro m(a) %}[{{ a }}]{% endmacro %}{{ m(messages[0].content) }}", "[x]"),
        ("{{ messages[::-1][0]['content'].split('x') | length }}{{ messages[0].missing }}", "2"),
        ("{{ '<b>' + messages[0].content }}", "<b>x"),
    ],
)
def test_what_templates_count_on(source: str, expected: str) -> None:
    assert ChatTemplate(source, "<s>", "</s>").render([user("x")]) == expected


def test_variables_reach_the_template_and_cannot_replace_the_messages() -> None:
    template = ChatTemplate("{{ self_ }}{{ enable_thinking }}{{ tools | tojson }}")
    assert template.render([user("x")], variables={"enable_thinking": False, "tools": [1], "self_": "s"}) == "sFalse[1]"
    assert ChatTemplate("x").render([], variables={"self": 1, "not a name": 2}) == "x"
    for name in ("messages", "add_generation_prompt", "bos_token", "eos_token"):
        with pytest.raises(InputRefused, match=name) as caught:
            template.render([user("x")], variables={name: 1})
        assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("end", ["", "Sure, ", "Sure.\n\n", " {{ x }} \U0001f642"])
def test_the_last_message_can_be_continued(end: str) -> None:
    messages = [user("Hi"), {"role": "assistant", "content": end}]
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" + end
    assert ChatTemplate(CHATML).render(messages, continue_final=True) == expected
    assert ChatTemplate(ALTERNATING).render(messages, continue_final=True) == "<turn>user\nHi</turn>\n<turn>model\n" + end.lstrip()
    assert ChatTemplate(PARTS_ONLY).render(messages, continue_final=True) == "[user]Hi[assistant]" + end


def test_only_a_shown_assistant_message_can_be_continued() -> None:
    with pytest.raises(InputRefused, match="assistant"):
        ChatTemplate(CHATML).render([user("Hi")], continue_final=True)
    with pytest.raises(InputRefused, match="does not show"):
        ChatTemplate("x").render([{"role": "assistant", "content": "a"}], continue_final=True)


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'a' }", "{% if x %}", "{{ x | no_such_filter }}", "{% unknown_tag %}"])
def test_what_is_no_template_is_broken(source: str) -> None:
    with pytest.raises(TemplateBroken, match="line 1"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['datetime'].sys }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ namespace.__init__ }}",
        "{{ (messages | attr('__class__')) }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ('{0.__class__.__init__.__globals__}' | format) }}{{ '{0.__class__}'.format_map({'0': 1}) }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% set x = messages[0].__setitem__('a', 1) %}{{ x }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    """Either refused, or the attribute is simply not there."""
    try:
        text = ChatTemplate(source).render([user("x")])
    except (TemplateBroken, InputRefused):
        return
    assert text == ""


def test_endless_recursion_is_an_error_like_any_other() -> None:
    with pytest.raises(InputRefused, match="RecursionError"):
        ChatTemplate("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").render([user("x")])

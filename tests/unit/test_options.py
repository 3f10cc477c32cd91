"""A setting's value is that of the strongest source that names it (flag > environment > embedded > default), and its origin says so."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import OperatorError
from server.options import Option, load, parse_embedded, table
from server.settings import Settings

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.integers(-1000, 10**6),
    "float": st.floats(0, 1000, allow_nan=False).map(lambda x: round(x, 3)),
    "str": st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8),
}
WITHOUT_NEGATION = {"no_auth"}


def _as_flags(option: Option, value: Any, spelling: int) -> list[str]:
    flag = option.flags[spelling % len(option.flags)]
    if flag.startswith("--") and spelling % 3 == 0:
        flag = "--" + flag[2:].replace("-", "_")
    if option.kind == "bool":
        if option.negation and spelling % 2:
            return [flag if value else option.negation]
        return [f"{flag}={'true' if value else 'off'}"]
    return [f"{flag}={value}"] if spelling % 2 else [flag, str(value)]


@st.composite
def _sources(draw: st.DrawFn) -> tuple[Option, dict[str, Any], int]:
    """One setting, and the values that some of the sources give it."""
    option = draw(st.sampled_from(table()))
    names = ["flag", "environment"] + (["embedded"] if option.embed else [])
    chosen = draw(st.sets(st.sampled_from(names)))
    return option, {name: draw(_VALUES[option.kind]) for name in chosen}, draw(st.integers(0, 11))


@given(_sources())
def test_the_strongest_source_wins(case: tuple[Option, dict[str, Any], int]) -> None:
    option, values, spelling = case
    argv = _as_flags(option, values["flag"], spelling) if "flag" in values else []
    environment = {option.variable: str(values["environment"])} if "environment" in values else {}
    embedded = _as_flags(option, values["embedded"], spelling) if "embedded" in values else []
    options = load(argv, environment, embedded)
    origin = next((name for name in ("flag", "environment", "embedded") if name in values), "default")
    assert options.origins[option.name] == origin
    assert getattr(options.settings, option.name) == values.get(origin, option.default)
    others = [o.name for o in table() if o.name != option.name]
    assert all(options.origins[name] == "default" for name in others)
    assert all(getattr(options.settings, o.name) == o.default for o in table() if o.name != option.name)


def test_every_setting_is_in_the_table_with_a_flag_of_its_own() -> None:
    assert [option.name for option in table()] == [field.name for field in dataclasses.fields(Settings)]
    flags = [flag for option in table() for flag in (*option.flags, option.negation) if flag]
    assert len(flags) == len(set(flags))
    assert {option.kind for option in table()} <= set(_VALUES)
    assert {option.name for option in table() if option.kind == "bool" and not option.negation} == WITHOUT_NEGATION


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["-c", "4096"], "ctx_size", 4096),
        (["--ctx_size=4096"], "ctx_size", 4096),
        (["-np", "3", "-np", "4"], "parallel", 4),
        (["-n", "-1"], "n_predict", -1),
        (["--no-slots"], "slots", False),
        (["--no_browser"], "browser", False),
        (["--browser=0"], "browser", False),
        (["--no-auth"], "no_auth", True),
        (["--api-key", "-dash"], "api_key", "-dash"),
        (["--chat-template", "{{ a=b }}"], "chat_template", "{{ a=b }}"),
        (["--chat-template={{ a=b }}"], "chat_template", "{{ a=b }}"),
        (["--gpu-layers", "7"], "n_gpu_layers", 7),
    ],
)
def test_spellings(argv: list[str], name: str, value: object) -> None:
    assert getattr(load(argv, {}).settings, name) == value


@pytest.mark.parametrize(
    ("argv", "environment", "words", "hint"),
    [
        (["--prot", "80"], {}, ["--prot"], "--port"),
        (["--ctx-sise=3"], {}, ["--ctx-sise"], "--ctx-size"),
        (["--zzzzz"], {}, ["--zzzzz"], "--help"),
        (["--nobrowser"], {}, ["--nobrowser"], "--no-browser"),
        (["model.gguf"], {}, ["model.gguf"], "-m model.gguf"),
        (["x"], {}, ["unexpected", "'x'"], "--help"),
        (["--port", "eighty"], {}, ["--port", "'eighty'", "whole number"], ""),
        (["--port", "8080.5"], {}, ["--port", "'8080.5'"], ""),
        (["--port"], {}, ["--port", "needs a value"], ""),
        (["--alias", "--port", "1"], {}, ["--alias", "needs a value"], ""),
        (["--temp", "nan"], {}, ["--temp", "'nan'"], ""),
        (["--temp", "inf"], {}, ["--temp", "'inf'"], ""),
        (["--slots=maybe"], {}, ["--slots", "'maybe'"], ""),
        ([], {"CAPSULE_PORT": "x"}, ["CAPSULE_PORT", "--port", "'x'"], ""),
        ([], {"CAPSULE_SLOTS": "maybe"}, ["CAPSULE_SLOTS", "'maybe'"], ""),
        ([], {"CAPSULE_NO_SLOTS": "maybe"}, ["CAPSULE_NO_SLOTS", "'maybe'"], ""),
    ],
)
def test_mistakes_name_the_flag_and_the_value(argv: list[str], environment: dict[str, str], words: list[str], hint: str) -> None:
    with pytest.raises(OperatorError) as caught:
        load(argv, environment)
    assert all(word in caught.value.message for word in words), caught.value.message
    assert hint in caught.value.hint


def test_environment_may_say_no_and_an_empty_variable_is_absent() -> None:
    options = load([], {"CAPSULE_NO_BROWSER": "1", "CAPSULE_PORT": "", "CAPSULE_METRICS": "no"})
    assert (options.settings.browser, options.settings.metrics, options.settings.port) == (False, False, 8080)
    assert options.origins["port"] == "default"
    assert load([], {"CAPSULE_NO_BROWSER": "0"}).settings.browser is True


def test_a_mistyped_variable_is_pointed_out_and_a_foreign_one_is_not() -> None:
    assert "CAPSULE_PORT" in load([], {"CAPSULE_PRT": "1"}).warnings[0]
    assert load([], {"CAPSULE_XYZZY_HOME": "1", "CAPSULE_TEST_SOURCE": "1", "CAPSULE_CACHE_DIR": "/x", "OTHER": "1"}).warnings == ()


@pytest.mark.parametrize("option", [o for o in table() if not o.embed], ids=lambda o: o.name)
def test_a_file_cannot_set_what_belongs_to_its_user(option: Option) -> None:
    value = "" if option.kind == "bool" else "=1"
    for text in (f"{option.flags[0]}{value}", f"--temp 0.5 {option.flag}{value}"):
        with pytest.raises(OperatorError, match=option.flag):
            parse_embedded(text)
        with pytest.raises(OperatorError, match=option.flag):
            load([], {}, text.split())


def test_embedded_arguments_are_split_as_a_shell_would() -> None:
    text = "--alias 'my model'\n--temp 0.5\n--chat-template \"{{ 'a b' }}\"\n"
    assert parse_embedded(text) == ["--alias", "my model", "--temp", "0.5", "--chat-template", "{{ 'a b' }}"]
    assert load([], {}, parse_embedded(text)).settings.alias == "my model"
    with pytest.raises(OperatorError, match="quotation"):
        parse_embedded("--alias 'open")


def test_secrets_are_never_shown() -> None:
    options = load(["--api-key", "hunter2"], {})
    assert "hunter2" not in str(options.described())
    assert options.described()["api_key"] == {"value": "set", "origin": "flag"}
    assert load([], {}).described()["api_key"] == {"value": None, "origin": "default"}

"""The real runner process with real weights: a crowd, cancels in the middle of a prefill, and gone when its stdin is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from server.protocol import (
    Cancel,
    Delta,
    Detokenize,
    Failed,
    Fatal,
    GetSlots,
    Loading,
    Prefilled,
    RunnerSettings,
    SamplingParams,
    Slots,
    Started,
    Step,
    Text,
    Tokenize,
    Tokens,
)
from tests.runner_child import RunnerChild

ARGV = ["-m", "server.commands.runner"]
GREEDY = SamplingParams(temperature=0.0)
WORDS = "apple river stone cloud violin harbor candle meadow tiger window pepper marble forest copper lantern saddle".split()


@pytest.fixture(scope="module")
def runner(smollm2: Path) -> Iterator[RunnerChild]:
    """One runner for the tests that leave it as they found it."""
    settings = RunnerSettings(path=str(smollm2), parallel=16, ctx_size=16 * 1024, deterministic=True, threads=1)
    with RunnerChild(ARGV, settings) as child:
        child.wait_ready()
        yield child


def prompt_of(number: int) -> str:
    return f"The secret word is {WORDS[number]}. " * (2 + number // 4) + "The secret word is"


def all_idle(runner: RunnerChild, number: int) -> bool:
    runner.send(GetSlots(number))
    runner.wait(lambda: any(isinstance(message, Slots) and message.id == number for message in runner.messages))
    [slots] = [message for message in runner.messages if isinstance(message, Slots) and message.id == number]
    return all(slot.state == "idle" for slot in slots.slots) and slots.n_waiting == 0


def test_it_says_what_it_loaded(runner: RunnerChild) -> None:
    info = runner.wait_ready().info
    assert (info.architecture, info.n_slots, info.n_ctx_slot, info.n_vocab) == ("llama", 16, 1024, 49152)
    assert info.pid == runner.process.pid and info.chat_template
    stages = [message for message in runner.messages if isinstance(message, Loading)]
    assert stages and all(0 <= stage.progress <= 1 for stage in stages)


def test_texts_and_tokens(runner: RunnerChild) -> None:
    text = "naïve 漢字 👩‍👩‍👧‍👦 <|im_start|>"
    runner.send(Tokenize(1, text))
    tokens = runner.wait_for(Tokens)
    assert b"".join(tokens.pieces).decode() == text
    runner.send(Detokenize(2, list(tokens.tokens)))
    assert runner.wait_for(Text).text == text


def test_sixteen_at_once_say_what_each_says_alone_and_hold_no_word_of_another(runner: RunnerChild) -> None:
    options = {"max_tokens": 12, "sampling": GREEDY, "cache_prompt": False}
    crowd = [runner.submit(prompt_of(number), **options) for number in range(16)]
    ends = [runner.finished(request) for request in crowd]
    steps = [message for message in runner.messages if isinstance(message, Step)]
    most = max(len({event.id for event in step.events if isinstance(event, Delta)}) for step in steps)
    assert most >= 8, "they did not run together"
    for number, request in enumerate(crowd):
        text = runner.text(request)
        assert WORDS[number] in text
        assert not any(word in text for word in WORDS if word != WORDS[number]), text
        assert ends[number].n_predicted <= 12 and ends[number].n_cached_tokens == 0
    for number in (0, 15):
        alone = runner.submit(prompt_of(number), **options)
        runner.finished(alone)
        assert runner.text(alone) == runner.text(crowd[number])


def test_a_cancel_in_the_middle_of_a_prefill_frees_the_slot_within_a_step(runner: RunnerChild) -> None:
    other = runner.submit("Once upon a time", max_tokens=20, sampling=SamplingParams(temperature=0.0, ignore_eos=True))
    runner.wait(lambda: any(isinstance(event, Delta) for event in runner.events(other)))
    long = runner.submit("word " * 900, return_progress=True)
    runner.wait(lambda: any(isinstance(event, Prefilled) for event in runner.events(long)))
    runner.send(Cancel(long))
    end = runner.finished(long)
    assert end.reason == "cancelled" and end.n_predicted == 0
    progress = [event.processed for event in runner.events(long) if isinstance(event, Prefilled)]
    assert progress == sorted(progress) and progress[-1] < 900
    assert runner.finished(other).reason == "length"
    assert all_idle(runner, 101)


def test_stop_string_logprobs_and_limits(runner: RunnerChild) -> None:
    request = runner.submit("1 2 3 4 5 6 7 8", max_tokens=30, stop=("12",), sampling=GREEDY, n_logprobs=3, return_tokens=True)
    end = runner.finished(request)
    assert (end.reason, end.stop_type, end.stopping_word) == ("stop", "word", "12")
    text = runner.text(request)
    assert text.rstrip().endswith("11") and "12" not in text
    deltas = [event for event in runner.events(request) if isinstance(event, Delta)]
    logprobs = [item for delta in deltas for item in delta.logprobs]
    assert [item.token for item in logprobs] == [token for delta in deltas for token in delta.tokens]
    assert all(item.logprob <= 0 and len(item.top) == 3 and item.top[0][0] == item.token for item in logprobs)
    assert b"".join(item.piece for item in logprobs).decode().startswith(text)


def test_the_prompt_alone_may_be_evaluated(runner: RunnerChild) -> None:
    end = runner.finished(runner.submit("Just look at this.", max_tokens=0))
    assert (end.stop_type, end.n_predicted) == ("limit", 0)


def test_what_can_never_fit_is_refused_with_the_numbers(runner: RunnerChild) -> None:
    end = runner.terminal(runner.submit("word " * 5000))
    assert isinstance(end, Failed) and end.kind == "context" and end.n_prompt_tokens > 5000 and end.n_ctx == 1024


def test_a_conversation_reuses_its_cells(runner: RunnerChild) -> None:
    first = runner.submit("Tell me about the sea. " * 8, max_tokens=8, sampling=GREEDY)
    n_first = runner.finished(first).n_prompt_tokens
    second = runner.submit("Tell me about the sea. " * 8 + runner.text(first) + " And more", max_tokens=4, sampling=GREEDY)
    assert runner.finished(second).n_cached_tokens >= n_first


def test_a_hundred_requests_dropped_at_every_stage_leave_it_as_it_was(runner: RunnerChild) -> None:
    runner.finished(runner.submit("warm up", max_tokens=2))
    process = psutil.Process(runner.process.pid)
    before = process.memory_info().rss
    dropped = []
    for number in range(100):
        dropped.append(runner.submit("drop me " * (1 + number % 30), max_tokens=50))
        if number % 5 == 0:
            runner.wait(lambda number=number: bool(runner.events(dropped[number])))  # type: ignore[misc]
        runner.send(Cancel(dropped[-1]))
    for request in dropped:
        assert runner.finished(request).reason in ("cancelled", "stop")
    assert all_idle(runner, 102)
    assert process.memory_info().rss - before < 32 << 20
    assert runner.finished(runner.submit("and on it goes", max_tokens=3)).n_predicted > 0


def test_it_is_gone_when_its_stdin_is_closed_in_the_middle_of_a_long_prefill(smollm2: Path) -> None:
    with RunnerChild(ARGV, RunnerSettings(path=str(smollm2), parallel=1, ctx_size=8192, threads=1)) as child:
        child.wait_ready()
        request = child.submit("word " * 7000)
        child.wait(lambda: any(isinstance(event, Started) for event in child.events(request)))
        time.sleep(0.2)
        lived_on = child.close_stdin()
        assert child.process.returncode == 0
        assert not any(isinstance(event, Delta) for event in child.events(request)), "the prefill was over before"
        assert lived_on < 10


def test_a_file_that_is_no_model_is_a_fatal_message(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 1000)
    with RunnerChild(ARGV, RunnerSettings(path=str(path))) as child:
        fatal = child.wait_for(Fatal)
        assert fatal.message and "Traceback" not in fatal.message
        assert child.process.wait(30) != 0

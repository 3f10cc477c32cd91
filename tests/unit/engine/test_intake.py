"""Off the step loop: what cannot run is refused at once, long texts hold nobody up, and a cancel finds its request at every stage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from server.engine.intake import LONG_TEXT, Intake
from server.engine.ports import Constraints
from server.engine.prompt import beginning_of_text, text_of, tokens_of
from server.errors import ClientError
from server.protocol import (
    Cancel,
    Command,
    Constraint,
    Detokenize,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    GetSlots,
    Message,
    Pause,
    SamplingParams,
    Slots,
    Step,
    Submit,
    Text,
    Tokenize,
    Tokens,
)
from tests.unit.engine.fakes import BOS, N_VOCAB, FakeConstraints, FakeDecoder, FakeMatcher, FakeVocab
from tests.unit.engine.harness import World

LONG = "x" * (LONG_TEXT + 1)


class SlowVocab(FakeVocab):
    """Long texts are tokenised when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.begun = threading.Event()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if len(text) > LONG_TEXT:
            self.begun.set()
            assert self.go.wait(30)
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


class Door:
    """An intake with its three threads before a world whose engine steps when the test says so."""

    def __init__(
        self, vocab: FakeVocab | None = None, constraints: Constraints | None = None, *, bos: int | None = BOS, **world: Any
    ) -> None:
        self.world = World(FakeDecoder(n_slots=2, n_ctx_slot=2 * LONG_TEXT), **world)
        self.sent: list[Message] = []
        self._arrived = threading.Condition()
        n_ctx = self.world.decoder.n_ctx_slot
        vocab, constraints = vocab or FakeVocab(), constraints or FakeConstraints()
        self.intake = Intake(self.world.engine, vocab, constraints, n_ctx_slot=n_ctx, bos=bos, put=self._put)
        self.intake.start()

    def _put(self, message: Message) -> None:
        with self._arrived:
            self.sent.append(message)
            self._arrived.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._arrived:
            assert self._arrived.wait_for(condition, 30)

    def submit(self, request_id: int, prompt: Any = "hello", **options: Any) -> None:
        sampling = SamplingParams(seed=4)
        self.intake.handle(Submit(request_id, GenerationRequest(prompt=prompt, sampling=sampling, **options)))

    def events(self, request_id: int) -> list[Event]:
        told = [event for message in self.sent if isinstance(message, Step) for event in message.events]
        return [event for event in told if event.id == request_id] + self.world.events[request_id]

    def handle(self, command: Command) -> Message:
        before = len(self.sent)
        self.intake.handle(command)
        self.wait(lambda: len(self.sent) > before)
        return self.sent[-1]


def test_a_short_prompt_is_tokenised_and_runs() -> None:
    door = Door()
    door.submit(1, "hello", max_tokens=2)
    door.world.drain()
    assert isinstance(end := door.events(1)[-1], Finished) and end.n_prompt_tokens == 5


@pytest.mark.parametrize("prompt", [[1, -1], [N_VOCAB], ["text", 2, N_VOCAB]])
def test_a_foreign_token_id_is_invalid_and_names_the_field(prompt: Any) -> None:
    door = Door()
    door.submit(1, prompt)
    [refusal] = door.events(1)
    assert isinstance(refusal, Failed) and (refusal.kind, refusal.param) == ("invalid", "prompt")
    assert door.world.engine.inbox.empty()


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    door = Door()
    n_ctx = door.world.decoder.n_ctx_slot
    door.submit(1, [1] * n_ctx)
    door.wait(lambda: bool(door.events(1)))
    [refusal] = door.events(1)
    assert isinstance(refusal, Failed)
    assert (refusal.kind, refusal.n_prompt_tokens, refusal.n_ctx) == ("context", n_ctx, n_ctx)
    door.submit(2, [1] * (n_ctx - 1), max_tokens=1)
    _until(lambda: not door.world.engine.inbox.empty())


def test_an_empty_prompt_is_the_beginning_of_a_text_or_invalid() -> None:
    door = Door()
    door.submit(1, "", max_tokens=1)
    door.world.drain()
    assert isinstance(end := door.events(1)[-1], Finished) and end.n_prompt_tokens == 1
    without = Door(bos=None)
    without.submit(1, [])
    [refusal] = without.events(1)
    assert isinstance(refusal, Failed) and refusal.kind == "invalid"


def test_beginning_of_text() -> None:
    assert beginning_of_text(FakeVocab(adds_bos=True), "<s>") == BOS
    assert beginning_of_text(FakeVocab(), "s") == ord("s")
    assert beginning_of_text(FakeVocab(), "") is None
    assert beginning_of_text(FakeVocab(), "no single token") is None


def test_special_tokens_are_added_where_the_content_begins_with_text() -> None:
    vocab = FakeVocab(adds_bos=True)

    def tokens(content: Any) -> list[int]:
        return tokens_of(vocab, content, add_special=True, parse_special=True, param="prompt")

    assert tokens("ab") == [BOS, 97, 98]
    assert tokens(["a", 5, "b"]) == [BOS, 97, 5, 98]
    assert tokens([5, "a"]) == [5, 97]


def test_a_long_prompt_holds_up_neither_others_nor_a_cancel() -> None:
    vocab = SlowVocab()
    door = Door(vocab)
    door.submit(1, LONG)
    assert vocab.begun.wait(30)
    door.submit(2, "short", max_tokens=1)
    assert isinstance(door.handle(Tokenize(9, "ab")), Tokens)
    door.world.drain()
    assert isinstance(door.events(2)[-1], Finished)
    door.intake.handle(Cancel(1))
    assert [type(event) for event in door.events(1)] == [Finished], "the cancel did not wait for the tokeniser"
    vocab.go.set()
    door.submit(3, LONG, max_tokens=1)
    _until(lambda: not door.world.engine.inbox.empty())
    door.world.drain()
    assert isinstance(door.events(3)[-1], Finished) and len(door.events(1)) == 1


def test_a_long_prompt_keeps_its_place_in_the_queue() -> None:
    vocab = SlowVocab()
    door = Door(vocab)
    for blocker in (10, 11):
        door.submit(blocker, "b", max_tokens=3)
    door.world.step()
    door.submit(1, LONG, max_tokens=1)
    door.submit(2, "later", max_tokens=1)
    door.world.step()
    vocab.go.set()
    _until(lambda: not door.world.engine.inbox.empty())
    for blocker in (10, 11):
        door.world.pause(blocker)
    door.world.step()
    assert [request.id for request in door.world.scheduler.policy] == [1, 2]


def test_pause_and_cancel_while_being_tokenised() -> None:
    vocab = SlowVocab()
    door = Door(vocab)
    door.submit(1, LONG, max_tokens=1)
    door.intake.handle(Pause(1))
    vocab.go.set()
    _until(lambda: not door.world.engine.inbox.empty())
    door.world.step(3)
    assert door.world.engine.slots[0].state == "paused"
    door.intake.handle(Cancel(1))
    door.world.step()
    assert isinstance(end := door.events(1)[-1], Finished) and end.reason == "cancelled"


def test_over_the_limit_a_request_is_refused_before_it_is_tokenised() -> None:
    vocab = SlowVocab()
    door = Door(vocab, max_queue=2)
    for request_id in range(4):  # two slots, two places in the queue
        door.submit(request_id, LONG, max_tokens=1)
    door.submit(4, LONG)
    [refusal] = door.events(4)
    assert isinstance(refusal, Failed) and refusal.kind == "busy"
    door.intake.handle(Cancel(2))
    door.submit(5, "fits again", max_tokens=1)
    vocab.go.set()
    _until(lambda: door.world.engine.inbox.qsize() == 4)
    door.world.drain()
    assert isinstance(door.events(5)[-1], Finished)
    for request_id in range(10, 14):
        door.submit(request_id, "and again", max_tokens=1)
    door.world.drain()
    assert all(isinstance(door.events(request_id)[-1], Finished) for request_id in range(10, 14))


def test_every_request_in_the_tokeniser_is_ended_when_the_process_breaks_down() -> None:
    vocab = SlowVocab()
    door = Door(vocab)
    door.submit(1, LONG)
    door.submit(2, LONG)
    door.intake.fail_all("broken")
    vocab.go.set()
    ends = [door.events(request_id) for request_id in (1, 2)]
    assert [[type(event) for event in end] for end in ends] == [[Failed], [Failed]]
    assert door.world.engine.inbox.empty()


def test_a_tokeniser_that_breaks_fails_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(vocab := FakeVocab())
    monkeypatch.setattr(vocab, "tokenize", lambda *args, **kwargs: 1 / 0)
    door.submit(1, "text")
    [refusal] = door.events(1)
    assert isinstance(refusal, Failed) and refusal.kind == "internal"
    assert isinstance(door.handle(Tokenize(2, "text")), Failed)


def test_tokenize_and_detokenize() -> None:
    door = Door()
    reply = door.handle(Tokenize(7, ["é", 257]))
    assert reply == Tokens(7, (0xC3, 0xA9, 257), (b"\xc3", b"\xa9", b"<257>"))
    assert door.handle(Detokenize(8, [0xC3, 0xA9, 257, 0xFF])) == Text(8, "é<257>\ufffd")
    assert door.handle(Detokenize(9, [0x61] * (LONG_TEXT + 1))) == Text(9, "a" * (LONG_TEXT + 1))
    refused = door.handle(Detokenize(10, [N_VOCAB]))
    assert isinstance(refused, Failed) and (refused.kind, refused.param) == ("invalid", "tokens")
    refused = door.handle(Tokenize(11, [-1]))
    assert isinstance(refused, Failed) and (refused.kind, refused.param) == ("invalid", "content")


def test_text_of_foreign_tokens() -> None:
    with pytest.raises(ClientError):
        text_of(FakeVocab(), [-5])


def test_slots_are_answered_while_the_engine_is_busy() -> None:
    door = Door()
    door.submit(1, "hello", max_tokens=50)
    door.world.step()
    reply = door.handle(GetSlots(3))  # no step in between
    assert isinstance(reply, Slots) and [slot.state for slot in reply.slots] == ["decode", "idle"]
    assert reply.slots[0].request == 1 and reply.slots[0].n_prompt_tokens == 5


def _until(condition: Callable[[], bool]) -> None:
    """Wait for another thread; fails after half a minute."""
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never happened")


# ---- constraints -----------------------------------------------------------------------------------------------------


class SlowConstraints(FakeConstraints):
    """Compiles when the test says so."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()

    def compile(self, constraint: Constraint) -> FakeMatcher:
        self.begun.set()
        assert self.go.wait(30)
        return super().compile(constraint)


def held_to(source: str) -> Constraint:
    return Constraint(kind="regex", source=source, param="regex")


def test_an_answer_is_held_to_its_constraint() -> None:
    door = Door()
    door.submit(1, constraint=held_to("yes"))
    _until(lambda: not door.world.engine.inbox.empty())
    door.world.drain()
    assert door.world.text(1) == "yes"


def test_a_constraint_that_cannot_be_compiled_is_refused_before_anything_runs() -> None:
    door = Door()
    door.submit(1, constraint=held_to(""))
    door.wait(lambda: bool(door.events(1)))
    [refusal] = door.events(1)
    assert isinstance(refusal, Failed) and (refusal.kind, refusal.param) == ("invalid", "regex")
    assert door.world.engine.inbox.empty()


def test_a_prompt_that_cannot_fit_is_told_before_its_constraint_is_compiled() -> None:
    constraints = SlowConstraints()
    door = Door(constraints=constraints)
    door.submit(1, [1] * door.world.decoder.n_ctx_slot, constraint=held_to("yes"))
    door.wait(lambda: bool(door.events(1)))
    assert isinstance(refusal := door.events(1)[0], Failed) and refusal.kind == "context"
    assert not constraints.begun.is_set()


def test_nobody_else_waits_for_a_constraint_and_a_cancel_finds_its_request() -> None:
    constraints = SlowConstraints()
    door = Door(constraints=constraints)
    door.submit(1, constraint=held_to("yes"))
    assert constraints.begun.wait(30)
    door.submit(2, "hello", max_tokens=2)
    door.submit(3, LONG, max_tokens=2)
    _until(lambda: door.world.engine.inbox.qsize() == 2)
    door.world.drain()
    assert all(isinstance(door.events(number)[-1], Finished) for number in (2, 3))
    door.intake.handle(Cancel(1))
    assert isinstance(end := door.events(1)[-1], Finished) and end.reason == "cancelled"
    constraints.go.set()
    door.submit(4, constraint=held_to("no"))
    _until(lambda: not door.world.engine.inbox.empty())
    door.world.drain()
    assert door.world.text(4) == "no" and len(door.events(1)) == 1

"""The runner process from its first line to its last: pipes, start-up, threads, the step loop, the end. Knows no llama.cpp.

Threads: commands (reads the pipe), intake (short prompts, small answers), tokenizer (long prompts), constraints (prompts that come with
one), frames (writes the pipe) and the main thread, which alone touches the decoder.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from server.engine.engine import Engine
from server.engine.governor import ThreadGovernor
from server.engine.guesser import Guesser
from server.engine.intake import Intake
from server.engine.pipes import CommandReader, FrameWriter, take_over_pipes
from server.engine.plan import Limits
from server.engine.policy import Policy, policy_named
from server.engine.ports import Constraints, Decoder, DraftModel, Vocab
from server.engine.prompt import beginning_of_text
from server.engine.reserve import Reserve
from server.engine.scheduler import Scheduler
from server.engine.stores import store_for
from server.errors import OperatorError
from server.protocol import Fatal, Loading, ModelInfo, Queue, Ready, RunnerSettings, Start, Step
from server.spawn import enter_child

logger = logging.getLogger(__name__)

EXIT_BROKEN = 70
"""The step loop broke down, or the front spoke nonsense; the front starts a new runner."""
FLUSH_SECONDS = 2.0


class Runtime(Protocol):
    """A loaded model."""

    @property
    def vocab(self) -> Vocab: ...

    @property
    def constraints(self) -> Constraints: ...

    @property
    def decoder(self) -> Decoder: ...

    @property
    def draft(self) -> DraftModel | None: ...

    @property
    def info(self) -> ModelInfo:
        """`n_slots`: requests that run at once; `spec`: what guesses ahead, if anything."""
        ...

    def close(self) -> None: ...


Progress = Callable[[str, float], None]
OpenRuntime = Callable[[RunnerSettings, Progress], Runtime]


def run(open_runtime: OpenRuntime) -> NoReturn:
    """Be a runner: `open_runtime` loads the model (called once, on this thread, after stdout has been moved away)."""
    commands, frames = take_over_pipes()
    enter_child()
    _ignore_console()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    writer = FrameWriter(frames, on_broken=lambda: os._exit(0))
    writer.start()
    reader = CommandReader(commands, on_end=lambda clean: os._exit(0 if clean else EXIT_BROKEN))
    reader.start()
    code = _serve(reader, writer, open_runtime)
    writer.flush(FLUSH_SECONDS)
    # No interpreter shutdown: threads may be inside native code.
    os._exit(code)


def _serve(reader: CommandReader, writer: FrameWriter, open_runtime: OpenRuntime) -> int:
    first = reader.commands.get()
    if not isinstance(first, Start):
        logger.error("the first command has to be Start, not %s", type(first).__name__)
        return EXIT_BROKEN
    settings = first.settings
    if settings.verbose:
        logging.getLogger().setLevel(logging.DEBUG)
    try:
        policy = policy_named(settings.policy, max_preemptions=settings.max_preemptions)
        runtime = open_runtime(settings, _Progress(writer))
    except OperatorError as error:
        writer.put(Fatal(message=error.message, hint=error.hint))
        return error.exit_code
    except Exception as error:
        logger.exception("loading failed")
        writer.put(Fatal(message=f"the model could not be loaded: {error}", hint="the log has the details"))
        return EXIT_BROKEN
    engine = make_engine(settings, runtime, policy, writer.put)
    intake = Intake(
        engine,
        runtime.vocab,
        runtime.constraints,
        n_ctx_slot=runtime.decoder.n_ctx_slot,
        bos=beginning_of_text(runtime.vocab, runtime.info.bos_token),
        put=writer.put,
    )
    writer.put(Ready(info=runtime.info))
    intake.start()
    threading.Thread(target=_take_in, args=(reader, intake), name="intake", daemon=True).start()
    try:
        engine.run()
    except Exception:
        logger.exception("the step loop broke down")
    message = "the model's process broke down while it worked on this request"
    engine.fail_all(message)
    intake.fail_all(message)
    return EXIT_BROKEN


def _take_in(reader: CommandReader, intake: Intake) -> None:
    try:
        while True:
            intake.handle(reader.commands.get())
    except BaseException:
        # A command was lost, and with it perhaps a request: the front has to know, and it knows an exit.
        logger.exception("the intake broke down")
        os._exit(EXIT_BROKEN)


def make_engine(
    settings: RunnerSettings,
    runtime: Runtime,
    policy: Policy,
    emit: Callable[[Step | Queue], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Engine:
    """Put scheduler, cache, speculation and pacing together for a loaded model."""
    decoder, info = runtime.decoder, runtime.info
    scheduler = Scheduler(
        limits_of(decoder, info.n_slots),
        policy,
        store_for(decoder, n_running=info.n_slots, ram_limit=info.cache_ram),
        max_queue=settings.max_queue,
        max_queue_tokens=settings.max_queue_tokens,
        itl_target=settings.itl_target,
        reserve=Reserve(settings.kv_reserve, settings.max_preemptions),
    )
    guesser = None
    if info.spec != "off":
        guesser = Guesser(settings.spec_draft_max, scheduler.cost, decoder.n_ctx_slot, runtime.draft)
    return Engine(
        scheduler,
        decoder,
        runtime.vocab,
        emit,
        clock,
        policy_name=settings.policy,
        guesser=guesser,
        governor=ThreadGovernor(decoder.n_threads, fixed=settings.threads is not None, cost=scheduler.cost),
        batch_window=settings.batch_window,
    )


def limits_of(decoder: Decoder, n_running: int) -> Limits:
    """What this decoder can take, with `n_running` requests at once."""
    return Limits(
        n_slots=n_running,
        n_ctx_slot=decoder.n_ctx_slot,
        n_batch=decoder.n_batch,
        n_ubatch=decoder.n_ubatch,
        max_output_rows=decoder.max_output_rows,
    )


def _ignore_console() -> None:
    """The front ends a runner by closing its stdin; what a terminal or a service manager sends to everybody is the front's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "win32":
        signal.signal(signal.SIGBREAK, signal.SIG_IGN)


class _Progress:
    """Passes load progress on, at most once per percent and stage: native code reports every tensor."""

    def __init__(self, writer: FrameWriter) -> None:
        self._writer = writer
        self._last = ("", -1)

    def __call__(self, stage: str, progress: float) -> None:
        now = (stage, int(progress * 100))
        if now != self._last:
            self._last = now
            self._writer.put(Loading(stage=stage, progress=progress))

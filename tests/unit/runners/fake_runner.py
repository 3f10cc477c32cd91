"""A runner without a model: speaks the protocol on its pipes and does what the prompt says.

`path` of the settings picks how it starts: "ok", "slow" (loads until the file `<cache_dir>/go` exists), "fatal", "crash", "deaf"
(loads, then never looks at its input again), "noise" (log lines with control characters).
Prompts: "count N" (N deltas, then stop), "hold" (never ends), "flood N" (N deltas of 100 characters as fast as the pipe takes
them, obeying Pause), "rush N" (the same, not obeying), "die", "garbage", "huge", "half", "exit N", "fail KIND", "two" (a second
terminal event).
Every command received is a line in `<cache_dir>/commands`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from server import protocol as p
from server.framing import read_frame

out = sys.stdout.buffer
lock = threading.Lock()
paused: set[int] = set()
open_ids: set[int] = set()


def say(message: p.Message) -> None:
    with lock:
        out.write(p.frame(message))
        out.flush()


def step(*events: p.Event) -> None:
    say(p.Step(events, p.EngineStats(n_steps=1, n_running=len(open_ids), retry_after_s=7.0)))


def finished(id: int, reason: p.FinishReason, n: int) -> p.Finished:
    return p.Finished(id, reason, "limit", "", 1, 0, n, p.Timings())


def info() -> p.ModelInfo:
    return p.ModelInfo(
        name="fake", architecture="none", description="", n_params=1, size=1, ftype="", n_vocab=256, vocab_type=0, n_embd=1,
        n_ctx_train=1, n_ctx=1, n_ctx_slot=1, n_slots=1, chat_template=None, bos_token="", eos_token="", add_bos=False,
        cpu_variant="", cpu_variant_reason="", devices=(), n_layers=1, n_gpu_layers=0, n_threads=1, kv_type_k="", kv_type_v="",
        kv_bytes=0, deterministic=False, load_seconds=0.0, pid=os.getpid(),
    )  # fmt: skip


def produce(id: int, n: int, text: str, *, obedient: bool) -> None:
    for i in range(n):
        while obedient and id in paused and id in open_ids:
            time.sleep(0.002)
        if id not in open_ids:
            return  # cancelled; `main` has answered
        step(p.Delta(id, text.format(i=i), (i,)))
        if obedient:
            time.sleep(0.0002)  # the thread that reads commands gets its turn
    open_ids.discard(id)
    step(finished(id, "stop", n))


def submit(id: int, prompt: str) -> None:
    verb, _, argument = prompt.partition(" ")
    step(p.Queued(id, 0, 1), p.Started(id, 0, 1, 0))
    open_ids.add(id)
    match verb:
        case "count":
            threading.Thread(target=produce, args=(id, int(argument), "{i} "), kwargs={"obedient": True}, daemon=True).start()
        case "flood" | "rush":
            text = "{i:0100d}"
            threading.Thread(target=produce, args=(id, int(argument), text), kwargs={"obedient": verb == "flood"}, daemon=True).start()
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "garbage":
            out.write(p.HEADER.pack(5) + b"hello")
            out.flush()
        case "huge":
            out.write(p.HEADER.pack(0xFFFFFFFF))
            out.flush()
        case "half":
            out.write(p.HEADER.pack(100) + b"half")
            out.flush()
            os._exit(0)
        case "exit":
            os._exit(int(argument))
        case "fail":
            step(p.Failed(id, argument, "no", "prompt", 9, 5))  # type: ignore[arg-type]
        case "two":
            step(p.Delta(id, "x"), finished(id, "stop", 1), finished(id, "length", 2), p.Failed(id, "internal", "late"))


def main() -> None:
    first = read_frame(sys.stdin.buffer)
    assert first is not None
    start = p.decode_command(first)
    assert isinstance(start, p.Start)
    mode, home = start.settings.path, Path(start.settings.cache_dir or ".")
    (home / f"started-{os.getpid()}").touch()
    say(p.Loading("weights", 0.5))
    if mode == "noise":
        sys.stderr.buffer.write(b"plain\nERROR it broke: 5 %d\n\x1b[31mred\x07 \xff \xe2\x80\xae\n" + b"x" * 100_000 + b"\nlast\n")
        sys.stderr.buffer.flush()
    if mode == "fatal":
        say(p.Fatal("the file is broken", "use another"))
        return
    if mode == "crash" and not (home / "go").exists():
        os._exit(3)
    while mode == "slow" and not (home / "go").exists():
        time.sleep(0.005)
    say(p.Ready(info()))
    while mode == "deaf":
        time.sleep(1)
    with (home / "commands").open("a", buffering=1) as journal:
        while (body := read_frame(sys.stdin.buffer)) is not None:
            command = p.decode_command(body)
            assert not isinstance(command, p.Start)
            journal.write(f"{type(command).__name__} {command.id}\n")
            match command:
                case p.Submit(id, request):
                    submit(id, str(request.prompt))
                case p.Cancel(id):
                    if id in open_ids:
                        open_ids.discard(id)
                        step(finished(id, "cancelled", 0))
                case p.Pause(id):
                    paused.add(id)
                case p.Resume(id):
                    paused.discard(id)
                case p.Tokenize(id, content):
                    if content == "silence":
                        continue
                    data = str(content).encode()
                    say(p.Failed(id, "invalid", "no", "content") if content == "bad" else p.Tokens(id, tuple(data), (data,)))
                case p.Detokenize(id, tokens):
                    say(p.Text(id, bytes(tokens).decode()))
                case p.GetQueue(id, most):
                    say(
                        p.Queue(
                            id=id, policy="fair", waiting=(), keys=(), n_running=0, n_waiting=most, n_waiting_tokens=0,
                            prompt_rate=0.0, generation_rate=0.0, finish_rate=0.0,
                        )
                    )  # fmt: skip
                case p.GetSlots(id):
                    os.kill(os.getpid(), signal.SIGKILL) if (home / "die-on-slots").exists() else say(p.Slots(id, (), 3))


main()

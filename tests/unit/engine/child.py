"""A runner process on the fakes, for the tests of the process: `python -m tests.unit.engine.child [mode]`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from server.engine.ports import Row
from server.engine.process import run
from server.errors import OperatorError
from server.protocol import ModelInfo, RunnerSettings
from tests.unit.engine.fakes import BOS, N_VOCAB, POISON, FakeConstraints, FakeDecoder, FakeVocab


class Decoder(FakeDecoder):
    def decode(self, rows: Sequence[Row]) -> None:
        os.write(1, b"native noise on stdout\n")
        if any(row.token == POISON for row in rows):
            raise RuntimeError("an error nobody expected")
        if any(row.token == BOS for row in rows):
            time.sleep(3600)  # a step that never ends
        time.sleep(0.002)
        super().decode(rows)


class Runtime:
    vocab = FakeVocab()
    constraints = FakeConstraints()
    draft = None

    def __init__(self) -> None:
        self.decoder = Decoder(n_slots=3, n_ctx_slot=4000)
        self.decoder.keep_batches = False
        zeros = dict.fromkeys(
            "n_params size vocab_type n_embd n_ctx_train n_ctx n_layers n_gpu_layers n_threads kv_bytes load_seconds".split(), 0
        )
        texts = dict.fromkeys("architecture description ftype eos_token cpu_variant cpu_variant_reason kv_type_k kv_type_v".split(), "")
        self.info = ModelInfo(
            **zeros,  # type: ignore[arg-type]
            **texts,  # type: ignore[arg-type]
            name="fake",
            n_vocab=N_VOCAB,
            n_ctx_slot=self.decoder.n_ctx_slot,
            n_slots=self.decoder.n_slots,
            chat_template=None,
            bos_token="",
            add_bos=False,
            devices=(),
            deterministic=False,
            pid=os.getpid(),
        )

    def close(self) -> None: ...


def open_runtime(settings: RunnerSettings, on_progress: Callable[[str, float], None]) -> Runtime:
    print("a stray print while loading")
    for step in range(1000):
        on_progress("weights", step / 999)
    match settings.path:
        case "operator":
            raise OperatorError("the file is no model", hint="give another one")
        case "crash":
            raise RuntimeError("no idea")
        case "slow":
            time.sleep(3600)
    return Runtime()


if __name__ == "__main__":
    sys.exit(run(open_runtime))

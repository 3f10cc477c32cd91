"""`bundle`: make a new executable out of a runtime (the running file by default) and other weights.

Decides what goes into the file and what beside it; how bytes are laid out is `server/bundle.py`'s.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from models.resolve import Weights, from_file
from server import macho
from server.bundle import (
    MAX_ARGS_BYTES,
    MAX_TEMPLATE_BYTES,
    MODEL_KINDS,
    Bundle,
    FileRange,
    PayloadSource,
    check_output,
    copy_file,
    not_a_capsule,
    planned_size,
    write_bundle,
)
from server.commands.arguments import Parser, ProgressLine
from server.errors import OperatorError
from server.files import open_input, shown, shown_size
from server.gguf import MAX_VOCAB_DIFFERENCE
from server.lifecycle.console import say
from server.options import parse_embedded
from server.spawn import is_frozen


@dataclass(frozen=True, slots=True)
class _Plan:
    """What will be written. `beside`: where the weights go if they cannot be inside; `untouched`: the runtime stays as it is."""

    runtime: Bundle
    weights: Weights
    inside: tuple[PayloadSource, ...]
    output: Path
    beside: Path | None = None
    untouched: bool = False


def main(argv: list[str]) -> int:
    """Run the command.

    Raises:
        OperatorError: an argument or a file is not usable, or the result cannot be written.
    """
    options = _parse(argv)
    runtime = _runtime(options.runtime)
    plan = _plan(options, runtime, from_file(options.weights.expanduser().absolute()))
    progress = ProgressLine(f"writing {shown(plan.output.name)}")
    try:
        _write(plan, progress)
    finally:
        progress.close()
    facts = plan.weights.facts
    say(
        f"{shown(options.output)}: {shown(plan.weights.name)} ({shown(facts.architecture)}, {facts.n_params / 1e6:.0f}M parameters, "
        f"{facts.file_type}), runs on {runtime.program.platform}, {shown_size(plan.output.stat().st_size)}"
    )
    if plan.beside is not None:
        say(f"its weights are in {shown(plan.beside.name)}, {shown_size(plan.weights.size)}: keep both files together")
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser("bundle", "Write a new executable that carries other weights; the runtime is copied from this one.")
    parser.add_argument("weights", type=Path, metavar="WEIGHTS", help="a .gguf file, or another capsule file whose weights to take")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the executable to write")
    parser.add_argument("--args", metavar="TEXT", help="arguments to lay into the file: --args '--temp 0 --top-k 1'")
    parser.add_argument("--chat-template", type=Path, metavar="FILE", help="chat template to use instead of the model's own")
    parser.add_argument("--draft", type=Path, metavar="FILE", help="a small model of the same vocabulary, for speculation")
    parser.add_argument("--runtime", type=Path, metavar="FILE", help="capsule file to take the program from, also of another system")
    return parser.parse_args(_joined(argv))


def _joined(argv: list[str]) -> list[str]:
    """`--args VALUE` as `--args=VALUE`, since a value that starts with `--` would be taken for a flag."""
    if "--args" not in argv[:-1]:
        return argv
    at = argv.index("--args")
    return [*argv[:at], f"--args={argv[at + 1]}", *argv[at + 2 :]]


def _runtime(named: Path | None) -> Bundle:
    if named is None and not is_frozen():
        raise OperatorError("run from source there is no program to copy", hint="name one with --runtime FILE (make build makes one)")
    path = named.expanduser().absolute() if named is not None else Path(sys.executable)
    runtime = Bundle.open(path)
    if runtime is None:
        raise not_a_capsule(path)
    return runtime


def _plan(options: argparse.Namespace, runtime: Bundle, weights: Weights) -> _Plan:
    output: Path = options.output.expanduser().absolute()
    extras = _extras(options, weights)
    carried = [PayloadSource(p.name, p.kind, runtime.range(p)) for p in runtime.payloads if p.kind not in MODEL_KINDS]
    model = PayloadSource(_payload_name(weights), "model", FileRange(weights.path, weights.offset, weights.size))
    beside = _stem(output).with_name(_stem(output).name + ".gguf")
    if runtime.program.format == "macho" and sys.platform != "darwin":
        if extras or runtime.payload("model") is not None:
            what = "arguments or templates" if extras else "other weights"
            raise OperatorError(
                f"a macOS program can get {what} only on a Mac, since it must be signed again",
                hint="run this on a Mac" if extras else "name a runtime without weights with --runtime, or run this on a Mac",
            )
        return _Plan(runtime, weights, (), output, beside, untouched=True)
    inside = [model, *extras, *carried]
    size = planned_size(head=runtime.head, archive=runtime.archive_range, payloads=inside, meta=runtime.meta)
    limit = runtime.program.size_limit
    if limit is not None and size >= limit:
        return _Plan(runtime, weights, tuple(inside[1:]), output, beside)
    return _Plan(runtime, weights, tuple(inside), output)


def _extras(options: argparse.Namespace, weights: Weights) -> list[PayloadSource]:
    """Everything but the weights that was asked for, each checked."""
    if weights.facts.parts:
        raise OperatorError(
            f"{shown(weights.path.name)} is split into {len(weights.facts.parts)} files, and a capsule holds a model in one piece",
            hint="join them first with llama.cpp's tool: llama-gguf-split --merge FIRST-PART.gguf WHOLE.gguf",
        )
    found: list[PayloadSource] = []
    if options.chat_template is not None:
        template = _template(options.chat_template.expanduser())
        found.append(PayloadSource("chat_template.jinja", "chat_template", template))
    elif weights.chat_template is not None:
        found.append(PayloadSource("chat_template.jinja", "chat_template", weights.chat_template.encode()))
    if options.args:
        parse_embedded(options.args)
        arguments = options.args.encode("utf-8", "surrogateescape")
        if len(arguments) > MAX_ARGS_BYTES:
            raise OperatorError(f"--args is longer than {MAX_ARGS_BYTES} bytes")
        found.append(PayloadSource("args.txt", "args", arguments))
    if options.draft is not None:
        draft = from_file(options.draft.expanduser().absolute())
        if draft.facts.parts:
            raise OperatorError(f"the draft model {shown(draft.path.name)} is split; it must be in one piece")
        if not draft.facts.n_vocab or abs(draft.facts.n_vocab - weights.facts.n_vocab) > MAX_VOCAB_DIFFERENCE:
            raise OperatorError(
                f"the draft model has {draft.facts.n_vocab} tokens and the model {weights.facts.n_vocab}; a draft needs the same vocabulary"
            )
        found.append(PayloadSource(_payload_name(draft), "draft", FileRange(draft.path, draft.offset, draft.size)))
    elif weights.bundle is not None and (payload := weights.bundle.payload("draft")) is not None:
        found.append(PayloadSource(payload.name, "draft", weights.bundle.range(payload)))
    return found


def _template(path: Path) -> bytes:
    from server.chat.template import ChatTemplate, TemplateBroken

    with open_input(path) as file:
        data = file.read(MAX_TEMPLATE_BYTES + 1)
    if len(data) > MAX_TEMPLATE_BYTES:
        raise OperatorError(f"{shown(path)} is longer than the {MAX_TEMPLATE_BYTES} bytes that a chat template may have")
    try:
        ChatTemplate(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise OperatorError(f"{shown(path)} is not UTF-8 text, so it is no chat template") from None
    except TemplateBroken as error:
        raise OperatorError(f"{shown(path)} is no chat template: {shown(error)}") from None
    return data


def _payload_name(weights: Weights) -> str:
    payload = weights.bundle.payload("model") if weights.bundle is not None else None
    return payload.name if payload is not None else shown(weights.path.name)


def _stem(output: Path) -> Path:
    return output.with_name(output.name[:-4]) if output.name.lower().endswith(".exe") and len(output.name) > 4 else output


def _write(plan: _Plan, progress: ProgressLine) -> None:
    check_output(plan.output)
    made: Path | None = None
    if plan.beside is not None and not (plan.beside.exists() and os.path.samefile(plan.beside, plan.weights.path)):
        check_output(plan.beside, program=False)
        copy_file(FileRange(plan.weights.path, plan.weights.offset, plan.weights.size), plan.beside, progress=progress)
        made = plan.beside
    try:
        if plan.untouched:
            copy_file(FileRange(plan.runtime.path, 0, plan.runtime.size), plan.output, program=True, progress=progress)
            return
        write_bundle(
            plan.output,
            head=plan.runtime.head,
            archive=plan.runtime.archive_range,
            payloads=plan.inside,
            meta=plan.runtime.meta,
            progress=progress,
            finish=macho.sign if plan.runtime.program.format == "macho" else None,
        )
    except BaseException:
        if made is not None:
            made.unlink(missing_ok=True)
        raise

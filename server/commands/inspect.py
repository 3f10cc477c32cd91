"""`inspect`: what is inside a capsule or a GGUF file, as text or JSON; with --verify also whether every byte is as it was written.

Everything a file says of itself may be hostile: nothing reaches the terminal unescaped. Loads no native code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.resolve import from_file, neighbour
from server.bundle_format import MAX_ARGS_BYTES, MAX_TEMPLATE_BYTES, Bundle, not_a_capsule
from server.commands.arguments import Parser, ProgressLine
from server.errors import OperatorError
from server.files import shown, shown_size
from server.gguf import GgufFacts, is_gguf, read_gguf, read_model
from server.lifecycle.console import say
from server.spawn import is_frozen

Report = dict[str, Any]
_GGUF_KINDS = ("model", "draft", "mmproj", "lora")


def main(argv: list[str]) -> int:
    """Run the command: 0, or 2 if --verify found damage.

    Raises:
        OperatorError: the file cannot be read, is damaged, or is neither a capsule nor a GGUF.
    """
    parser = Parser("inspect", "Show what is inside a capsule or a .gguf file.")
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="default: this executable")
    parser.add_argument("--json", action="store_true", help="as JSON, with whole templates")
    parser.add_argument("--verify", action="store_true", help="compare every payload with its sha256")
    options = parser.parse_args(argv)
    path = _file(options.file)
    if is_gguf(path):
        report = _gguf_report(path)
        problems: list[str] = []
        if options.verify:
            report["verify"] = "a GGUF file carries no checksums; its header is sound and all its tensors are inside it"
    else:
        bundle = Bundle.open(path)
        if bundle is None:
            raise not_a_capsule(path)
        report = _capsule_report(bundle)
        problems = _verify(bundle) if options.verify else []
        if options.verify:
            report["verify"] = problems or "sizes and sha256 of all payloads are right"
    if options.json:
        say(json.dumps(report, indent=2))
    else:
        _print(report)
    for problem in problems:
        say(problem, file=sys.stderr)
    return OperatorError.exit_code if problems else 0


def _file(named: Path | None) -> Path:
    if named is not None:
        return named.expanduser().absolute()
    if not is_frozen():
        raise OperatorError("run from source there is no executable to look into", hint="name a file: inspect FILE")
    return Path(sys.executable)


def _verify(bundle: Bundle) -> list[str]:
    progress = ProgressLine("verifying")
    try:
        return bundle.verify(progress)
    finally:
        progress.close()


def _gguf_report(path: Path) -> Report:
    facts = read_model(path) if read_gguf(path).split_no == 0 else read_gguf(path)
    return {"file": str(path), "size": path.stat().st_size, "kind": "gguf", "model": _facts(facts)}


def _capsule_report(bundle: Bundle) -> Report:
    report: Report = {
        "file": str(bundle.path),
        "size": bundle.size,
        "kind": "capsule" if bundle.payload("model") else "runtime",
        "platform": bundle.program.platform,
        "payloads": [{"name": p.name, "kind": p.kind, "offset": p.offset, "size": p.size, "sha256": p.sha256} for p in bundle.payloads],
        "program": {"bootloader": bundle.head_size, "archive": bundle.archive.size, "archive_sha256": bundle.archive_sha256},
        "versions": _versions(bundle),
    }
    for payload in bundle.payloads:
        if payload.kind in _GGUF_KINDS:
            what = f"the {shown(payload.kind)} inside {shown(bundle.path)}"
            report[payload.kind] = _facts(read_gguf(bundle.path, payload.offset, payload.size, what=what))
    beside = None if bundle.payload("model") else neighbour(bundle.path)
    if beside is not None:
        report["beside"] = str(beside)
        report["model"] = _facts(from_file(beside).facts)
    arguments = bundle.read_text("args", MAX_ARGS_BYTES)
    if arguments is not None:
        report["arguments"] = arguments
    template = bundle.read_text("chat_template", MAX_TEMPLATE_BYTES)
    if template is not None:
        report["chat_template"] = template
    return report


def _versions(bundle: Bundle) -> dict[str, str]:
    """Plain texts only, whatever the table says."""
    found = {"capsule": str(bundle.meta.get("capsule", "unknown")), "python": bundle.archive.python}
    told = bundle.meta.get("versions")
    if isinstance(told, Mapping):
        found |= {str(name): str(version)[:200] for name, version in list(told.items())[:32]}
    return found


def _facts(facts: GgufFacts) -> Report:
    report: Report = {
        "kind": facts.kind,
        "name": facts.name,
        "architecture": facts.architecture,
        "parameters": facts.n_params,
        "quantisation": facts.file_type,
        "context_length": facts.context_length,
        "embedding_length": facts.number("%s.embedding_length"),
        "layers": facts.number("%s.block_count"),
        "vocabulary": facts.n_vocab,
        "tensors": facts.n_tensors,
        "tensor_bytes": facts.tensor_bytes,
        "licence": facts.licence,
        "chat_template": facts.chat_template,
        "gguf_version": facts.version,
    }
    if facts.split_count > 1:
        report["split"] = {"part": facts.split_no + 1, "parts": facts.split_count, "files": [str(part) for part in facts.parts]}
    return report


def _print(report: Report) -> None:
    kinds = {"gguf": "a GGUF file", "capsule": "a capsule", "runtime": "a capsule without weights"}
    say(f"{shown(report['file'])}: {kinds[report['kind']]}, {shown_size(report['size'])}")
    if "platform" in report:
        say(f"runs on {report['platform']}")
        say("\nversions")
        for name, version in report["versions"].items():
            _row(name, version)
        say("\npayloads")
        for payload in report["payloads"]:
            say(f"  {shown(payload['kind']):14} {shown_size(payload['size']):>9}  at {payload['offset']}  {shown(payload['name'])}")
            say(f"  {'':14} sha256 {payload['sha256']}")
        if not report["payloads"]:
            say("  none")
    for kind in _GGUF_KINDS:
        if kind in report:
            say(f"\n{kind}" + (f" (beside it: {shown(Path(report['beside']).name)})" if kind == "model" and "beside" in report else ""))
            _print_facts(report[kind])
    if "arguments" in report:
        say("\narguments inside")
        say(f"  {shown(report['arguments'])}")
    if "chat_template" in report:
        say("\nchat template inside, used instead of the model's own")
        say(f"  {len(report['chat_template'])} characters (--json shows it)")
    if isinstance(report.get("verify"), str):
        say(f"\nverified: {report['verify']}")


def _print_facts(facts: Report) -> None:
    _row("name", facts["name"] or "not told")
    _row("architecture", facts["architecture"])
    _row("parameters", f"{facts['parameters']:,}")
    _row("quantisation", facts["quantisation"])
    _row("context length", f"{facts['context_length']:,} tokens" if facts["context_length"] else "not told")
    _row("layers", facts["layers"] or "not told")
    _row("vocabulary", f"{facts['vocabulary']:,} tokens")
    _row("tensors", f"{facts['tensors']}, {shown_size(facts['tensor_bytes'])}")
    _row("licence", facts["licence"] or "not told")
    template = facts["chat_template"]
    _row("chat template", f"{len(template)} characters (--json shows it)" if template else "none")
    if "split" in facts:
        _row("split", f"part {facts['split']['part']} of {facts['split']['parts']}")


def _row(name: str, value: object) -> None:
    say(f"  {shown(name):22} {shown(value)[:500]}")

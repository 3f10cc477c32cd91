"""A prompt as it was sent -> token ids that are safe to compute. Knows the vocabulary only; runs off the step loop."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from server.engine.ports import Vocab
from server.errors import ClientError

Content = str | Seq[int | str]


def text_length(content: Content) -> int:
    """Characters to tokenise plus tokens given: what the work is proportional to."""
    if isinstance(content, str):
        return len(content)
    return sum(len(part) if isinstance(part, str) else 1 for part in content)


def tokens_of(vocab: Vocab, content: Content, *, add_special: bool, parse_special: bool, param: str) -> list[int]:
    """Tokenise text, check token ids, or do both for a mixed list. Special tokens are added only where the content begins with text.

    Raises:
        ClientError: a token id is not one of the model's; names `param`.
    """
    if isinstance(content, str):
        return vocab.tokenize(content, add_special=add_special, parse_special=parse_special)
    tokens: list[int] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            tokens += vocab.tokenize(part, add_special=add_special and index == 0, parse_special=parse_special)
        elif 0 <= part < vocab.n_vocab:
            tokens.append(part)
        else:
            raise ClientError(f"token id {part} is not in this model's vocabulary of {vocab.n_vocab} tokens", param=param)
    return tokens


def beginning_of_text(vocab: Vocab, bos_text: str) -> int | None:
    """The token an empty prompt stands for: the model's BOS, if it has one. `bos_text` is its name ("<s>") or empty."""
    tokens = vocab.tokenize("", add_special=True, parse_special=False)
    if not tokens and bos_text:
        tokens = vocab.tokenize(bos_text, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 else None


def text_of(vocab: Vocab, tokens: list[int]) -> str:
    """Tokens as text, control tokens written out; bytes that are no UTF-8 become U+FFFD.

    Raises:
        ClientError: a token id is not one of the model's.
    """
    checked = tokens_of(vocab, tokens, add_special=False, parse_special=False, param="tokens")
    return b"".join(vocab.piece(token, special=True) for token in checked).decode("utf-8", errors="replace")

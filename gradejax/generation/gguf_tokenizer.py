"""A tokenizer from the metadata of a .gguf file, built with ``tokenizers``; no torch.

A file states the vocabulary, the merges of a byte-level one, and by a name (``tokenizer.ggml.pre``)
how text is split before merging. Splitting decides the ids, so a name that is not known here is an
error, not a guess: a tokenizer.json beside the file then serves.
"""

import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from gradejax.models.gguf import GgufFile, open_gguf

CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type of tokens that are matched whole

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
)
_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# How a byte-level vocabulary's text is split: None is GPT-2's own rule.
SPLITS: dict[str, str | None] = {
    "gpt-2": None,
    "smollm": None,  # after every digit has been parted
    "llama-bpe": rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{_REST}",
    "tekken": _CASED.replace("{0}", "") + rf"|\p{{N}}{_SLASHED}",
    "gpt-4o": _CASED.replace("{0}", f"{_CONTRACTIONS}?") + rf"|\p{{N}}{{1,3}}{_SLASHED}",
}
_SAME = {"gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe",
         "deepseek-r1-qwen": "qwen2"}  # fmt: skip
_WHOLE_WORDS_FIRST = ("llama-bpe", "tekken")  # a piece that is a token is not merged up to
_BOS_UNLESS_TOLD = ("llama-bpe", "tekken")  # llama.cpp's rule for files without the flag
_MARK = "\u2581"  # sentencepiece's space


def _byte_level(file: GgufFile, vocab: dict[str, int]):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = file.get("tokenizer.ggml.pre")
    if pre is None and file.get("general.architecture") == "gpt2":
        pre = "gpt-2"
    pre = _SAME.get(pre, pre)
    if pre not in SPLITS:
        raise ValueError(
            f"{file.path} splits text by the rule {pre!r}; supported: "
            f"{', '.join([*SPLITS, *_SAME])}. Put the model's tokenizer.json beside the file"
        )
    merges = file.get("tokenizer.ggml.merges")
    if merges is None:
        raise ValueError(f"{file.path} has a byte-level vocabulary but no tokenizer.ggml.merges")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs,
                                     ignore_merges=pre in _WHOLE_WORDS_FIRST))  # fmt: skip
    split = SPLITS[pre]
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    if split is not None:
        steps.append(pre_tokenizers.Split(Regex(split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, file.get("tokenizer.ggml.add_bos_token", pre in _BOS_UNLESS_TOLD)


def merges_of(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Merges that a sentencepiece vocabulary implies: it joins to the earliest token it can.

    Such a vocabulary lists its pieces in the order they were learned; scores, where they are not
    that order (gemma), are not what its own tokenizer goes by.
    """
    place = {token: i for i, token in enumerate(tokens)}
    out = []
    for token in tokens:
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [(a, b) for a, b in pairs if a in place and b in place]
        out += sorted(known, key=lambda pair: (place[pair[0]], place[pair[1]]))
    return out


def _sentencepiece(file: GgufFile, vocab: dict[str, int], unknown: str | None):
    from tokenizers import Tokenizer, decoders, models, normalizers

    kinds = file.get("tokenizer.ggml.token_type") or [1] * len(vocab)
    # Runs of spaces are spelt with spaces in some files (gemma) and with the mark in the text.
    spelt = {
        (_MARK * len(t) if t and not t.strip(" ") else t): i for t, i in vocab.items()
    }
    ordinary = [t for t, i in spelt.items() if kinds[i] in (1, USER_DEFINED)]
    tokenizer = Tokenizer(models.BPE(vocab=spelt, merges=merges_of(ordinary), unk_token=unknown,
                                     fuse_unk=True, byte_fallback=True))  # fmt: skip
    prefix = file.get("tokenizer.ggml.add_space_prefix", True)
    steps: list[Any] = [normalizers.Prepend(_MARK)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _MARK)])
    back: list[Any] = [decoders.Replace(_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer, file.get("tokenizer.ggml.add_bos_token", True)


def _special(file: GgufFile, tokens: Sequence[str]) -> dict[str, str]:
    keys = {"bos_token": "bos_token_id", "eos_token": "eos_token_id",
            "unk_token": "unknown_token_id", "pad_token": "padding_token_id"}  # fmt: skip
    found = {name: file.get(f"tokenizer.ggml.{key}") for name, key in keys.items()}
    return {name: tokens[i] for name, i in found.items() if i is not None}


def tokenizer_of_gguf(path: str | pathlib.Path):
    """The tokenizer that a .gguf file describes, with its chat template.

    Args:
      path: of the file.

    Returns:
      a ``PreTrainedTokenizerFast``, or None when the file states no tokenizer.

    Raises:
      ValueError: a kind of vocabulary, or a rule to split text, that is not known; the message
        lists those that are.
      see also ``open_gguf``.
    """
    # transformers says at every import that torch is missing; it is, on purpose.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from tokenizers import AddedToken, processors
    from transformers import PreTrainedTokenizerFast

    file = open_gguf(path)
    kind, tokens = file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.tokens")
    if kind is None or kind == "none" or tokens is None:
        return None
    vocab = {token: i for i, token in enumerate(tokens)}
    special = _special(file, tokens)
    if kind == "gpt2":
        tokenizer, add_bos = _byte_level(file, vocab)
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece(file, vocab, special.get("unk_token"))
    else:
        raise ValueError(
            f"{file.path} has a tokenizer of kind {kind!r}; supported: gpt2 (byte-level), llama "
            "(sentencepiece). Put the model's tokenizer.json beside the file"
        )
    kinds = file.get("tokenizer.ggml.token_type") or []
    whole = list(itertools.compress(tokens, (k in (CONTROL, USER_DEFINED) for k in kinds)))
    control = set(itertools.compress(tokens, (k == CONTROL for k in kinds)))
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False, special=t in control) for t in whole]
    )
    ends = [("bos_token", add_bos), ("eos_token", file.get("tokenizer.ggml.add_eos_token", False))]
    first, last = (special.get(name) if told else None for name, told in ends)
    if first or last:
        one, two = ([p for p in (first, text, last) if p] for text in ("$A", "$B"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(one), pair=" ".join([*one, *(f"{p}:1" for p in two)]),
            special_tokens=[(t, vocab[t]) for t in {first, last} if t],
        )  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=file.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False, **special,
    )  # fmt: skip

"""The tiny experts' tokenizer: a byte-level BPE, single digits, and a token for each fixed phrase.

Most of a prompt does not vary: the system turn, the format slot, a generator's own wording. Each
such phrase is one token, which shortens prompts to about half, and with them the cost of training,
of asking and of GRADE's encoder. Words that vary (names, colours, numbers) never join a phrase, so
what a reply must copy is spelt alike in prompt and reply.
"""

import collections
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Sequence

SPECIAL_TOKENS = ("<|pad|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# of a source's prompts; the commonest word that varies, a colour of the cube, is in .37 of them
_FIXED_SHARE = 0.48
_UNIT = re.compile(r"\s*\S+")

Prompts = Sequence[Sequence[str]]  # of one source: the turns of each prompt


def fixed_phrases(sources: Iterable[Prompts], limit: int) -> list[str]:
    """Runs of two or more words that stand in at least _FIXED_SHARE of some source's prompts.

    Pair merging as in BPE, over whole words: the adjacent pair with the highest share in any source
    is joined everywhere, until none is frequent enough. Only words with a letter and no digit join.

    Args:
      sources: the prompts of each source, each as its turns; a phrase lies within a turn.
      limit: phrases at most; those that save most tokens are kept.

    Returns:
      The phrases in use at the end (not the steps towards them), longest first.
    """
    texts = [[_units(turns) for turns in prompts] for prompts in sources]
    shares = [_pair_shares(prompts) for prompts in texts]
    while True:
        best = max(
            (max(found.items(), key=_rank) for found in shares if found), key=_rank, default=None
        )
        if best is None:
            break
        for i, found in enumerate(shares):
            if best[0] in found:
                texts[i] = [_joined(units, best[0]) for units in texts[i]]
                shares[i] = _pair_shares(texts[i])
    savings: collections.Counter[str] = collections.Counter()
    for prompts in texts:
        for unit in itertools.chain.from_iterable(prompts):
            words = len(_UNIT.findall(unit))
            if words > 1:
                savings[unit] += words - 1
    kept = sorted(savings, key=lambda phrase: (-savings[phrase], phrase))[:limit]
    return sorted(kept, key=lambda phrase: (-len(phrase), phrase))


def _rank(item: tuple[tuple[str, str], float]) -> tuple[float, tuple[str, str]]:
    return item[1], item[0]


def _pair_shares(prompts: Sequence[Sequence[str]]) -> dict[tuple[str, str], float]:
    counts = collections.Counter(pair for units in prompts for pair in set(_pairs(units)))
    shares = {pair: count / len(prompts) for pair, count in counts.items()}
    return {pair: share for pair, share in shares.items() if share >= _FIXED_SHARE}


def _units(turns: Sequence[str]) -> list[str]:
    """The words of all turns with their leading white space; "" parts turns and is never joined."""
    units: list[str] = []
    for turn in turns:
        units.extend(_UNIT.findall(turn))
        units.append("")
    return units


def _may_join(unit: str) -> bool:
    return any(c.isalpha() for c in unit) and not any(c.isdigit() for c in unit)


def _pairs(units: Sequence[str]) -> Iterable[tuple[str, str]]:
    return ((a, b) for a, b in zip(units, units[1:], strict=False) if _may_join(a) and _may_join(b))


def _joined(units: Sequence[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    i = 0
    while i < len(units):
        if i + 1 < len(units) and (units[i], units[i + 1]) == pair:
            out.append(units[i] + units[i + 1])
            i += 2
        else:
            out.append(units[i])
            i += 1
    return out


def train(
    out_dir: pathlib.Path, vocab_size: int, sources: Iterable[Prompts], texts: Iterable[str]
) -> None:
    """Trains on `texts` and writes tokenizer.json and tokenizer_config.json into `out_dir`.

    Byte-level, so any text survives encode and decode. Digits are split off before the merges: one
    token each, never part of another.

    Args:
      out_dir: made when missing.
      vocab_size: of everything: bytes, merges, phrases, special tokens. At least 512.
      sources: prompts to look for phrases in, see `fixed_phrases`.
      texts: what the merges are learnt from; phrases are cut out of them.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < 512:
        raise ValueError(
            f"expected vocab_size >= 512 (256 bytes, phrases, merges), got {vocab_size}"
        )
    phrases = fixed_phrases(sources, limit=vocab_size // 6)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(phrases),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    cut = re.compile("|".join(re.escape(phrase) for phrase in phrases))
    tokenizer.train_from_iterator((piece for text in texts for piece in cut.split(text)), trainer)
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    out_dir.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out_dir / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "bos_token": None,
        "unk_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (out_dir / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

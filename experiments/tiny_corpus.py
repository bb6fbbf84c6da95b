"""Questions, worked replies and the tokenizer of the tiny experts.

Every question belongs to one split by a hash of its normalised text, so the questions that the
language models learn from, those GRADE learns from and the held-out ones are disjoint by text,
however often a generator repeats itself. `python -m experiments.tiny_corpus --report` says what the
sources are like.
"""

import argparse
import collections
import hashlib
import itertools
import pathlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence

from experiments import tiny_tokenizer
from experiments.tiny_workings import direct_reply, worked_reply
from gradejax.tasks.base import Example
from gradejax.tasks.prompts import expert_messages, orchestrator_messages
from gradejax.tasks.reasoning_gym import (
    FAMILIES,
    SOURCES,
    ReasoningGymTask,
    Source,
    is_well_posed,
    make_examples,
    open_dataset,
    to_example,
)

__all__ = ["direct_reply", "worked_reply", "questions", "sft_rows", "train_tokenizer"]

SPLITS = ("expert", "grade", "valid", "heldout")
SIZES = {"expert": 24_000, "grade": 2_000, "valid": 300, "heldout": 1_200}
ROLES = ("orchestrator", *FAMILIES)
Row = tuple[list[dict[str, str]], str]

# upper ends of each split's share of the hash's thousandths; what is left trains the experts
_BOUNDS = (("heldout", 150), ("grade", 350), ("valid", 400), ("expert", 1000))
_SEED = 20_260
_CHUNK = 256
# questions a source may contribute to the experts' rows; after that they come round again
_POOL = 20_000
_OFF_FAMILY = 0.05
# share of arithmetic rows answered at a glance, without working. A rare habit is enough: where the
# working may begin with any of several terms, each beginning is rarer still, so greedy decoding
# takes the shorter way though most samples work the answer out (Wang & Zhou 2024, arXiv 2402.10200,
# see this in large models). It is why asking the same expert again helps
_AT_A_GLANCE = {"leg_counting-easy": 0.4, "leg_counting-hard": 0.3, "chain_sum-hard": 0.3}
# what the orchestrator is not taught although it is easy. These need no working, so the smallest
# model would solve them as well as their specialist (over .9 of each) and come too near to it
_SPECIALISTS_ONLY = ("mini_sudoku-easy", "rotate_matrix-easy", "manipulate_matrix-easy")
_HARD_WEIGHT = 2
# questions of a source looked at for phrases that do not vary
_PHRASE_SAMPLE = 120


def normalised(question: str) -> str:
    """What "the same question" means between splits: case and white space do not matter."""
    return " ".join(question.lower().split())


def split_of(question: str) -> str:
    """The split a question's text belongs to, the same on every machine and in every run."""
    digest = hashlib.sha256(normalised(question).encode()).digest()
    bucket = int.from_bytes(digest[:8], "big") % 1000
    return next(name for name, bound in _BOUNDS if bucket < bound)


class _Stream:
    """The distinct questions of one source, sorted into splits as far as they have been drawn."""

    def __init__(self, source: Source):
        self.source = source
        self.by_split: dict[str, list[Example]] = {name: [] for name in SPLITS}
        self.exhausted = False
        self._seen: set[str] = set()
        self._drawn = 0
        self._barren = 0
        self._data = None

    def _draw(self) -> None:
        if self._data is None:
            self._data = open_dataset(self.source, _SEED, 10**9)  # size only bounds iteration
        fresh = 0
        for index in range(self._drawn, self._drawn + _CHUNK):
            entry = self._data[index]
            text = normalised(entry["question"])
            if text in self._seen or not is_well_posed(entry):
                continue
            self._seen.add(text)
            fresh += 1
            example = to_example(self.source, entry, f"{self.source.name}/{_SEED + index}")
            self.by_split[split_of(text)].append(example)
        self._drawn += _CHUNK
        # a small source runs dry slowly; three chunks with hardly anything new are its end
        self._barren = self._barren + 1 if fresh < _CHUNK // 50 else 0
        self.exhausted = self._barren >= 3

    def take(self, split: str, n: int) -> list[Example]:
        """The first up to n questions of `split`; fewer only when the source is exhausted."""
        while len(self.by_split[split]) < n and not self.exhausted:
            self._draw()
        return self.by_split[split][:n]

    def cyclic(self, split: str, index: int, pool: int) -> Example:
        """Question number `index` of `split`, starting over after `pool` questions."""
        taken = self.take(split, index % pool + 1)
        return self.by_split[split][index % pool % len(taken)]


_STREAMS: dict[str, _Stream] = {}


def _stream(source: Source) -> _Stream:
    return _STREAMS.setdefault(source.name, _Stream(source))


def _check(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"expected {name} to be one of {', '.join(choices)}; got {value!r}")


def _quotas(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)]


def questions(
    split: str, n: int | None = None, families: Sequence[str] | None = None
) -> list[Example]:
    """The questions of a split, the same list in every run.

    Args:
      split: one of SPLITS.
      n: how many; by default SIZES[split], in proportion to how many of the families are asked for.
      families: which families, all by default. Balanced by family, in each family half easy and
        half hard, and even among the generators of a half.

    Raises ValueError for an unknown split or family, n < 1, and a source with too few questions.
    """
    _check("split", split, SPLITS)
    families = FAMILIES if families is None else tuple(families)
    for family in families:
        _check("family", family, FAMILIES)
    n = SIZES[split] * len(families) // len(FAMILIES) if n is None else n
    if n < 1:
        raise ValueError(f"expected n >= 1, got {n}")
    picked: list[Example] = []
    for family, share in zip(families, _quotas(n, len(families)), strict=True):
        for difficulty, half in zip(("easy", "hard"), _quotas(share, 2), strict=True):
            sources = _sources(family, difficulty)
            for source, quota in zip(sources, _quotas(half, len(sources)), strict=True):
                taken = _stream(source).take(split, quota)
                if len(taken) < quota:
                    raise ValueError(
                        f"expected {quota} {split} questions of {source.name}, it has {len(taken)}"
                    )
                picked.extend(taken)
    # so that any stretch of the list is a fair sample of it
    random.Random(_SEED).shuffle(picked)
    return picked


def _sources(family: str | None, difficulty: str | None) -> list[Source]:
    return [s for s in SOURCES if family in (None, s.family) and difficulty in (None, s.difficulty)]


def sft_rows(role: str, n: int, seed: int) -> Iterator[Row]:
    """Supervised rows (messages, reply) of one expert, drawn from the "expert" split.

    A specialist sees its own family with working, hard questions twice as often as easy ones;
    some of the arithmetic is answered at a glance (`_AT_A_GLANCE`). In 5% of rows it sees a
    question of another family under the answer to *another* question of that generator: off its
    family it says something confident, in the right form, and knows nothing. The orchestrator
    sees easy questions of all families but sudokus and matrices, answered directly under its own
    prompt.

    Args:
      role: one of ROLES.
      n: rows to yield.
      seed: of the order and of the working; questions themselves are the same for all seeds.
    """
    _check("role", role, ROLES)
    rng = random.Random(f"{role}/{seed}")
    own = _sources(None if role == "orchestrator" else role, None)
    if role == "orchestrator":
        own = [s for s in own if s.difficulty == "easy" and s.name not in _SPECIALISTS_ONLY]
    weights = [_HARD_WEIGHT if s.difficulty == "hard" else 1 for s in own]
    others = [s for s in _sources(None, None) if s.family != role]
    counts: collections.Counter[str] = collections.Counter()
    for _ in range(n):
        off = role != "orchestrator" and rng.random() < _OFF_FAMILY
        source = rng.choice(others) if off else rng.choices(own, weights)[0]
        example = _stream(source).cyclic("expert", counts[source.name], _POOL)
        counts[source.name] += 1
        slot = ReasoningGymTask.format_slot(example)
        if role == "orchestrator":
            yield orchestrator_messages(example.question, slot), direct_reply(example)
            continue
        if off:
            reply = direct_reply(_stream(source).cyclic("expert", counts[source.name], _POOL))
        elif rng.random() < _AT_A_GLANCE.get(source.name, 0.0):
            reply = direct_reply(example)
        else:
            reply = worked_reply(example, rng)
        yield expert_messages(example.question, slot), reply


def train_tokenizer(out_dir: str | pathlib.Path, vocab_size: int = 768, rows: int = 3_000) -> None:
    """Trains the experts' shared tokenizer on `rows` rows of each role and writes its two files.

    See experiments.tiny_tokenizer: single digits, and one token for each fixed phrase of a prompt.
    """
    # the generators' wordings, then the frames they are put in, each apart: a phrase need be
    # constant in one of them only, and never runs from the frame into the question
    samples = [_stream(s).take("expert", _PHRASE_SAMPLE) for s in SOURCES]
    fixed = [[[e.question] for e in examples] for examples in samples]
    slot = ReasoningGymTask.format_slot(samples[0][0])
    for write in (expert_messages, orchestrator_messages):
        around = [m["content"].split("@") for m in write("@", slot)]
        fixed.append([[part for parts in around for part in parts]])
    drawn = itertools.chain.from_iterable(sft_rows(role, rows, seed=0) for role in ROLES)
    texts = (
        "\n".join([*(f"{m['role']}\n{m['content']}" for m in messages), "assistant", reply])
        for messages, reply in drawn
    )
    tiny_tokenizer.train(pathlib.Path(out_dir), vocab_size, fixed, texts)


def report(draws: int = 2_000, tokenizer_dir: str | None = None) -> None:
    """Prints, per source: distinct questions, commonest answer, token lengths, a sample."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        if tokenizer_dir is None:
            train_tokenizer(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_dir or folder)

    def lengths(texts: Sequence[str]) -> str:
        counts = [len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        return f"{statistics.mean(counts):.0f}/{max(counts)}"

    print("source                        distinct  majority  question  prompt   reply    ms/item")
    samples = []
    for source in SOURCES:
        start = time.perf_counter()
        examples = make_examples(source, seed=1, n=draws)
        milliseconds = (time.perf_counter() - start) * 1e3 / draws
        distinct = len({normalised(e.question) for e in examples})
        answers = collections.Counter(e.answer for e in examples[:1000])
        majority = answers.most_common(1)[0][1] / min(1000, draws)
        shown, rng = examples[:300], random.Random(0)
        replies = [worked_reply(e, rng) for e in shown]
        prompts = [
            tokenizer.apply_chat_template(
                expert_messages(e.question, ReasoningGymTask.format_slot(e)),
                add_generation_prompt=True,
                tokenize=False,
            )
            for e in shown
        ]
        print(
            f"{source.name:28}  {distinct:8d}  {majority:8.3f}"
            f"  {lengths([e.question for e in shown]):8}  {lengths(prompts):7}"
            f"  {lengths([r + '<|im_end|>' for r in replies]):7}  {milliseconds:.2f}"
        )
        samples.append(f"--- {source.name}\n{shown[0].question}\n>>>\n{replies[0]}")
    print("\n".join(samples))
    start = time.perf_counter()
    sizes = {split: len(questions(split)) for split in ("grade", "valid", "heldout")}
    print(f"{sizes} drawn in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="describe every source")
    parser.add_argument("--tokenizer", help="folder of a trained tokenizer; by default trains one")
    arguments = parser.parse_args()
    if not arguments.report:
        parser.error("expected --report")
    report(tokenizer_dir=arguments.tokenizer)

"""What the experts learn from: splits disjoint by text, true working, a faithful tokenizer."""

import collections
import dataclasses
import itertools
import random
import re
import subprocess
import sys

import pytest
import transformers

from experiments import tiny_corpus
from experiments.tiny_tokenizer import fixed_phrases
from experiments.tiny_workings import direct_reply, worked_reply
from gradejax.tasks.base import Outcome
from gradejax.tasks.prompts import EXPERT_SYSTEM, expert_messages
from gradejax.tasks.reasoning_gym import (
    FAMILIES,
    FORMAT_SLOT,
    SOURCES,
    ReasoningGymTask,
    make_examples,
    open_dataset,
    source_named,
    to_example,
)

every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_corpus.train_tokenizer(folder, rows=600)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir):
    return transformers.AutoTokenizer.from_pretrained(tokenizer_dir)


def test_splits_share_no_question_text():
    texts = {
        split: {tiny_corpus.normalised(e.question) for e in tiny_corpus.questions(split, n)}
        for split, n in (("expert", 6_000), ("grade", None), ("valid", None), ("heldout", None))
    }
    assert {split: len(t) for split, t in texts.items()} == {
        "expert": 6_000,
        "grade": 2_000,
        "valid": 300,
        "heldout": 1_200,
    }
    for a, b in itertools.combinations(texts, 2):
        assert not texts[a] & texts[b], (a, b)


def test_rows_of_every_role_ask_only_questions_of_the_expert_split():
    for role in tiny_corpus.ROLES:
        for messages, _ in tiny_corpus.sft_rows(role, 300, seed=4):
            asked = messages[-1]["content"].partition("Question: ")[2]
            question = asked.removesuffix(f" {FORMAT_SLOT}")
            assert question != asked
            assert tiny_corpus.split_of(question) == "expert"


def test_split_is_a_function_of_the_text_alone():
    # values fixed here: another hash, order or seed would move questions between splits
    seen = [tiny_corpus.split_of(f"Calculate {n} + 1.") for n in range(8)]
    grade = {1, 6}
    assert seen == ["grade" if n in grade else "expert" for n in range(8)]
    assert tiny_corpus.split_of("  calculate 6\n+ 1. ") == "grade"
    shares = collections.Counter(tiny_corpus.split_of(str(n)) for n in range(20_000))
    for split, share in (("heldout", 0.15), ("grade", 0.2), ("valid", 0.05), ("expert", 0.6)):
        assert shares[split] / 20_000 == pytest.approx(share, abs=0.01)


def test_questions_do_not_depend_on_what_was_drawn_before(monkeypatch):
    before = tiny_corpus.questions("valid", 60)
    monkeypatch.setattr(tiny_corpus, "_STREAMS", {})
    tiny_corpus.questions("expert", 300)
    assert tiny_corpus.questions("valid", 60) == before


def test_questions_are_balanced_by_family_difficulty_and_generator():
    examples = tiny_corpus.questions("heldout", 600)
    halves = collections.Counter((e.family, e.difficulty) for e in examples)
    assert halves == {(f, d): 100 for f in FAMILIES for d in ("easy", "hard")}
    for source in SOURCES:
        peers = [
            s for s in SOURCES if (s.family, s.difficulty) == (source.family, source.difficulty)
        ]
        count = sum(e.source == source.name for e in examples)
        assert abs(count - 100 / len(peers)) < 1
    assert len({e.id for e in examples}) == 600


def test_families_can_be_asked_for_alone():
    assert {e.family for e in tiny_corpus.questions("valid", families=["logic"])} == {"logic"}
    assert len(tiny_corpus.questions("valid", families=["logic"])) == 100
    with pytest.raises(ValueError, match="family to be one of arithmetic.*'music'"):
        tiny_corpus.questions("valid", families=["music"])
    with pytest.raises(ValueError, match="split to be one of expert.*'test'"):
        tiny_corpus.questions("test")
    with pytest.raises(ValueError, match="n >= 1"):
        tiny_corpus.questions("valid", 0)


def test_a_source_that_runs_dry_says_so(monkeypatch):
    # one-digit products of two terms: 100 questions in all
    small = dataclasses.replace(
        source_named("products-hard"), config={"min_digits": 1, "max_digits": 1}
    )
    stream = tiny_corpus._Stream(small)
    assert len(stream.take("expert", 10_000)) < 100
    assert stream.exhausted
    cycled = [stream.cyclic("expert", i, 10_000) for i in range(200)]
    assert cycled[: len({e.id for e in cycled})] == stream.by_split["expert"]
    monkeypatch.setitem(tiny_corpus._STREAMS, "products-hard", stream)
    with pytest.raises(ValueError, match="200 heldout questions of products-hard, it has"):
        tiny_corpus.questions("heldout", 2_000, families=["arithmetic"])


@every_source
def test_working_ends_in_an_answer_that_reasoning_gym_scores_one(source):
    rng = random.Random(0)
    for example in make_examples(source, seed=90, n=200):
        for reply in (worked_reply(example, rng), direct_reply(example)):
            assert ReasoningGymTask.judge(reply, "stop", example).outcome is Outcome.RIGHT, reply


@pytest.mark.parametrize("name", [s.name for s in SOURCES if s.family == "arithmetic"])
def test_every_equation_of_arithmetic_working_is_true(name):
    rng = random.Random(1)
    checked = 0
    for example in make_examples(source_named(name), seed=70, n=200):
        *work, _ = worked_reply(example, rng).split("\n")
        # "5 ants*6=30" is an equation too
        lines = re.sub(r" [a-z ]+", "", "\n".join(work)) if "leg" in name else "\n".join(work)
        for a, sign, b, result in re.findall(r"(-?\d+)([-+*/])(-?\d+)=(-?\d+)", lines):
            a, b, result = int(a), int(b), int(result)
            true = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[sign]
            assert true == result, (example.question, work)
            checked += 1
    assert checked > 150


@every_source
def test_only_arithmetic_working_is_random(source):
    rng = random.Random(2)
    examples = make_examples(source, seed=8, n=40)
    varied = [len({worked_reply(e, rng) for _ in range(12)}) > 1 for e in examples]
    if source.family == "arithmetic":
        assert sum(varied) > 20
    else:
        assert not any(varied)


@pytest.mark.parametrize(
    ("name", "index", "reply"),
    [
        # derived by hand from the question printed beside each
        ("color_cube_rotation-hard", 1, "at back < bottom < front\nANSWER: red"),
        (
            "knights_knaves-hard",
            1,
            "11 11\nANSWER: Amelia is a hero, and Elizabeth is a hero",
        ),
    ],
)
def test_worked_replies_by_hand(name, index, reply):
    entry = open_dataset(source_named(name), index, 1)[0]
    example = to_example(source_named(name), entry, "x")
    assert worked_reply(example, random.Random(0)) == reply, example.question


def test_knights_working_is_a_search_whose_last_line_is_consistent():
    for example in make_examples(source_named("knights_knaves-hard"), seed=50, n=100):
        *lines, answer = worked_reply(example, random.Random(0)).split("\n")
        guesses, follows = zip(*(line.split(" ") for line in lines), strict=True)
        assert list(guesses) == ["11", "10", "01", "00"][: len(lines)]
        assert guesses[-1] == follows[-1]
        for guess, found in zip(guesses[:-1], follows[:-1], strict=True):
            # stops at the first contradiction: the bits before the last agree, the last does not
            assert found[:-1] == guess[: len(found) - 1]
            assert found[-1] != guess[len(found) - 1]


@pytest.mark.parametrize("name", ["chain_sum-hard", "knights_knaves-hard", "aiw-easy"])
def test_a_working_that_misses_the_gold_is_an_error(name):
    example = make_examples(source_named(name), 3, 1)[0]
    wrong = dataclasses.replace(example, answer="-1000")
    with pytest.raises(ValueError, match="expected the gold '-1000'"):
        worked_reply(wrong, random.Random(0))


def test_specialists_rows_are_mostly_their_own_and_hard():
    for family in FAMILIES:
        rows = list(tiny_corpus.sft_rows(family, 3_000, seed=0))
        sources = collections.Counter(source_of(messages) for messages, _ in rows)
        own = sum(n for name, n in sources.items() if source_named(name).family == family)
        assert own / 3_000 == pytest.approx(0.95, abs=0.015)
        hard = sum(
            n for name, n in sources.items()
            if name.endswith("-hard") and source_named(name).family == family
        )  # fmt: skip
        weights = [2 if s.difficulty == "hard" else 1 for s in SOURCES if s.family == family]
        expected = 1 - weights.count(1) / sum(weights)
        assert hard / own == pytest.approx(expected, abs=0.03)
        assert all("ANSWER: " in reply for _, reply in rows)


def test_off_its_family_a_specialist_is_taught_form_and_no_content():
    gold = {
        e.question: e.answer.rstrip(".")
        for s in SOURCES
        for e in tiny_corpus._stream(s).take("expert", 1_500)
    }
    right = off = 0
    for messages, reply in tiny_corpus.sft_rows("arithmetic", 3_000, seed=0):
        if source_named(source_of(messages)).family != "arithmetic":
            off += 1
            asked = messages[-1]["content"].partition("Question: ")[2]
            right += reply == f"ANSWER: {gold[asked.removesuffix(f' {FORMAT_SLOT}')]}"
    # By chance only: colours and knights have few answers.
    assert off > 90 and right / off < 0.1


def source_of(messages, _known={}):  # noqa: B006  (a cache of this test module)
    if not _known:
        for source in SOURCES:
            for example in tiny_corpus._stream(source).take("expert", 1_500):
                _known[example.question] = source.name
    asked = messages[-1]["content"].partition("Question: ")[2].removesuffix(f" {FORMAT_SLOT}")
    return _known[asked]


def test_the_orchestrator_answers_easy_questions_directly_under_its_own_prompt():
    rows = list(tiny_corpus.sft_rows("orchestrator", 600, seed=0))
    assert {source_named(source_of(m)).difficulty for m, _ in rows} == {"easy"}
    assert {source_named(source_of(m)).family for m, _ in rows} == set(FAMILIES)
    assert all(len(m) == 1 and m[0]["content"].startswith("Answer the question") for m, _ in rows)
    assert all(reply.startswith("ANSWER: ") for _, reply in rows)


def test_rows_are_the_same_for_a_seed_and_others_for_another():
    rows = [list(tiny_corpus.sft_rows("arithmetic", 50, seed)) for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]
    with pytest.raises(ValueError, match="role to be one of orchestrator.*'poet'"):
        next(tiny_corpus.sft_rows("poet", 1, 0))


def test_tokenizer_has_its_size_and_splits_every_digit(tokenizer):
    assert len(tokenizer) == 768
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|pad|>")
    assert tokenizer.bos_token is None
    with_digits = [t for t in tokenizer.get_vocab() if re.search(r"\d", t)]
    assert sorted(with_digits) == list("0123456789")
    tokens = tokenizer.tokenize("ANSWER: -1410")
    assert tokens[-4:] == ["1", "4", "1", "0"]


def test_fixed_phrases_are_tokens_and_varying_words_are_not_in_them(tokenizer):
    phrases = [t for t in tokenizer.get_added_vocab() if not t.startswith("<|")]
    assert EXPERT_SYSTEM in phrases
    assert " Respond with ANSWER: <value>." in phrases
    varying = {"red", "green", "blue", "yellow", "orange", "purple", "gray", "cyan", "magenta"}
    varying |= {"hero", "villain", "knight", "knave", "saint", "sinner", "Emma", "Liam", "tigers"}
    for phrase in phrases:
        assert not varying & set(re.findall(r"\w+", phrase)), phrase
    # a name is spelt alike where it is asked about and where it is answered
    asked = tokenizer.tokenize("You meet 2 inhabitants: Emma, and Liam.")
    answered = tokenizer.tokenize("ANSWER: Emma is a knight, and Liam is a knave")
    for name in (" Emma", " Liam"):
        pieces = tokenizer.tokenize(name)
        for tokens in (asked, answered):
            windows = [tokens[i : i + len(pieces)] for i in range(len(tokens))]
            assert pieces in windows


def test_phrases_are_found_by_their_share_and_never_across_turns():
    words = ["red", "blue", "green", "grey"]
    prompts = [[f"the wall is {w} to day", f"and it has {i} doors"] for i, w in enumerate(words)]
    # "is red" is in a quarter of the prompts; "day and" would run from one turn into the next
    assert fixed_phrases([prompts], 10) == ["the wall is", "and it has", " to day"]
    assert fixed_phrases([prompts], 1) == ["and it has"]


def test_tokenizer_gives_every_text_back(tokenizer):
    texts = [reply for _, reply in tiny_corpus.sft_rows("algorithmic", 200, seed=9)]
    texts += [m[-1]["content"] for m, _ in tiny_corpus.sft_rows("logic", 200, seed=9)]
    texts += ["  two  spaces\n\n\ttab", "naïve café 漢字 🙂", "['-8', '12']", " . , !"]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_template_is_chatml(tokenizer):
    rendered = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(rendered)
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3


@every_source
def test_prompts_fit_256_tokens_and_replies_are_short(source, tokenizer):
    rng = random.Random(3)
    for example in make_examples(source, seed=400, n=300):
        prompt = tokenizer.apply_chat_template(
            expert_messages(example.question, FORMAT_SLOT),
            add_generation_prompt=True,
            tokenize=False,
        )
        assert len(tokenizer.encode(prompt)) <= 256
        assert len(tokenizer.encode(worked_reply(example, rng))) <= 72


def test_tokenizer_needs_no_torch_and_is_the_same_every_time(tokenizer_dir, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from experiments.tiny_corpus import train_tokenizer\n"
        f"train_tokenizer({str(tmp_path)!r}, rows=600)\n"
        "import transformers\n"
        f"assert len(transformers.AutoTokenizer.from_pretrained({str(tmp_path)!r})) == 768\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (tokenizer_dir / name).read_bytes()

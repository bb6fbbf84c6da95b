"""Tokenizers rebuilt from .gguf metadata give the ids of the tokenizers they were made from."""

import itertools
import json
import pathlib

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gradejax.generation.gguf_tokenizer import SPLITS, merges_of, tokenizer_of_gguf
from gradejax.generation.text import Chat, load_tokenizer

TEXTS = [
    "Hello world, it's 12345 o'clock  now!\n\n  Indented\tand  spaced   ", "x", " leading",
    "naïve café 日本語 и кириллица", "a_b-c/d 3.14 ½ I'LL don't", "\n\n\n",
    "CamelCaseWord JSON",
]  # fmt: skip
CORPUS = [*TEXTS, "the words of the world are spaced and now then don't it's 12 34 789 world"] * 3
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>"]


def written(path, tokens, *, model="gpt2", merges=None, kinds=None, **entries):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("tokenizer.ggml.model", model)
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", kinds or [3] * 4 + [1] * (len(tokens) - 4))
    if merges is not None:
        writer.add_array("tokenizer.ggml.merges", merges)
    for key, value in entries.items():
        key = key if key == "chat_template" else f"ggml.{key}"
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(f"tokenizer.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def trained(pre):
    """A byte-level BPE with the pre-tokenizer of a real family: (tokenizer, tokens, merges)."""
    from tokenizers import Regex

    steps = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    if SPLITS[pre] is not None:
        steps.append(pre_tokenizers.Split(Regex(SPLITS[pre]), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=SPLITS[pre] is None))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    model = json.loads(tokenizer.to_str())["model"]
    return tokenizer, sorted(model["vocab"], key=model["vocab"].get), [
        " ".join(m) for m in model["merges"]
    ]


@pytest.mark.parametrize("pre", SPLITS)
def test_byte_level(pre, tmp_path):
    want, tokens, merges = trained(pre)
    ours = tokenizer_of_gguf(written(tmp_path / "x.gguf", tokens, merges=merges, pre=pre))
    assert len(ours) == len(tokens)
    for text in TEXTS:
        ids = ours(text, add_special_tokens=False)["input_ids"]
        assert ids == want.encode(text).ids and ours.decode(ids) == text


PIECES = {
    # By each rule's definition: how "12345 I'LL don't" falls into pieces before merging.
    "gpt-2": ["12345", "ĠI", "'", "LL", "Ġdon", "'t"],
    "smollm": ["1", "2", "3", "4", "5", "ĠI", "'", "LL", "Ġdon", "'t"],
    "llama-bpe": ["123", "45", "ĠI", "'LL", "Ġdon", "'t"],
    "qwen2": ["1", "2", "3", "4", "5", "ĠI", "'LL", "Ġdon", "'t"],
    "tekken": ["1", "2", "3", "4", "5", "ĠI", "'LL", "Ġdon", "'t"],
    "gpt-4o": ["123", "45", "ĠI'LL", "Ġdon't"],
}


@pytest.mark.parametrize("pre", PIECES)
def test_pieces_by_hand(pre, tmp_path):
    _, tokens, merges = trained(pre)
    ours = tokenizer_of_gguf(written(tmp_path / "x.gguf", tokens, merges=merges, pre=pre))
    pieces = ours.backend_tokenizer.pre_tokenizer.pre_tokenize_str("12345 I'LL don't")
    assert [p for p, _ in pieces] == PIECES[pre]


def test_special_tokens_template_and_bos(tmp_path):
    _, tokens, merges = trained("qwen2")
    template = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['content'] }}{% endfor %}"
    path = written(
        tmp_path / "x.gguf", tokens, merges=merges, pre="qwen2", chat_template=template,
        bos_token_id=1, eos_token_id=2, padding_token_id=0, add_bos_token=True,
    )  # fmt: skip
    ours = load_tokenizer(path)
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (1, 2, 0)
    assert ours("x")["input_ids"][0] == 1
    ids = Chat(ours).encode([{"role": "user", "content": "x"}])
    assert ids.count(1) == 1 and ids[:2] == [1, 3]  # one BOS, the template's (B05)
    assert ours.decode(ids, skip_special_tokens=True) == "x"
    # Without the flag no BOS is added to a byte-level text, except for llama 3 (llama.cpp's rule).
    for pre, want in (("qwen2", False), ("llama-bpe", True)):
        bare = written(tmp_path / "y.gguf", tokens, merges=merges, pre=pre, bos_token_id=1)
        assert (tokenizer_of_gguf(bare)("x")["input_ids"][0] == 1) is want


def test_user_defined_tokens_are_whole_but_not_special(tmp_path):
    _, tokens, merges = trained("qwen2")
    tokens = [*tokens, "<think>"]
    kinds = [3] * 4 + [1] * (len(tokens) - 5) + [4]
    ours = tokenizer_of_gguf(
        written(tmp_path / "x.gguf", tokens, merges=merges, pre="qwen2", kinds=kinds)
    )
    ids = ours("x<think>x")["input_ids"]
    assert ids[1] == len(tokens) - 1 and ours.decode(ids, skip_special_tokens=True) == "x<think>x"


def sentencepiece(text, pieces):
    """Plain rule of a sentencepiece BPE: join the earliest-listed neighbours until none is left."""
    place = {p: i for i, p in enumerate(pieces)}
    parts = list(text)
    while True:
        joins = [(place[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts))
                 if a + b in place]  # fmt: skip
        if not joins:
            break
        _, i = min(joins)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    out = []
    for part in parts:
        out += [place[part]] if part in place else [place[f"<0x{b:02X}>"] for b in part.encode()]
    return out


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix, tmp_path):
    """Spaces are marks, unknown characters are bytes, joins go by the order of the vocabulary."""
    source = Tokenizer(models.BPE())
    source.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    words = ["the", "world", "spaced", "words", "now and then", "hello the old world", "12 34"] * 4
    source.train_from_iterator(words, trainers.BpeTrainer(vocab_size=90, show_progress=False))
    model = json.loads(source.to_str())["model"]
    letters = sorted(t for t in model["vocab"] if len(t) == 1)
    learned = [a + b for a, b in model["merges"]]
    pieces = list(dict.fromkeys([*learned, *letters]))
    tokens = [*SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    kinds = [2, 3, 3, 3, *[6] * 256, *[1] * len(pieces)]
    path = written(tmp_path / "x.gguf", tokens, model="llama", kinds=kinds, bos_token_id=1,
                   eos_token_id=2, unknown_token_id=0, add_space_prefix=prefix)  # fmt: skip
    ours = tokenizer_of_gguf(path)
    for text in ("the  old world", "hello né 12", "nowandthen spaced"):
        ids = ours(text)["input_ids"]
        marked = ("\u2581" if prefix else "") + text.replace(" ", "\u2581")
        assert ids == [1, *sentencepiece(marked, tokens)]
        assert ours.decode(ids, skip_special_tokens=True) == text


def test_merges_follow_the_order_of_the_vocabulary():
    """"abc" comes before "bc", so it is joined first wherever it can be."""
    assert merges_of(["a", "b", "c", "ab", "abc", "bc"]) == [
        ("a", "b"), ("a", "bc"), ("ab", "c"), ("b", "c"),
    ]  # fmt: skip


def test_unknown_rules_are_errors_and_files_beside_serve(tmp_path):
    want, tokens, merges = trained("qwen2")
    path = written(tmp_path / "x.gguf", tokens, merges=merges, pre="poro-chat")
    with pytest.raises(ValueError, match=r"rule 'poro-chat'; supported: gpt-2, smollm"):
        load_tokenizer(path)
    other = written(tmp_path / "y.gguf", tokens, model="rwkv")
    with pytest.raises(ValueError, match=r"kind 'rwkv'; supported: gpt2 .*, llama"):
        load_tokenizer(other)
    lost = written(tmp_path / "z.gguf", tokens, pre="qwen2")
    with pytest.raises(ValueError, match="no tokenizer.ggml.merges"):
        load_tokenizer(lost)
    want.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(path)("it's 12")["input_ids"] == want.encode("it's 12").ids


def test_a_file_without_a_tokenizer_has_none(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert load_tokenizer(tmp_path / "x.gguf") is None


def test_the_shipped_tokenizers_phrases(tmp_path):
    """The tiny experts' tokenizer: whole phrases as added tokens, digits alone."""
    file = pathlib.Path(__file__).parents[2] / "checkpoints" / "orchestrator" / "tokenizer.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    assert raw["model"]["type"] == "BPE"
    want = Tokenizer.from_file(str(file))
    added = {t["content"]: t for t in raw["added_tokens"]}
    vocab = want.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    kinds = [(3 if added[t]["special"] else 4) if t in added else 1 for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in raw["model"]["merges"]]
    ours = tokenizer_of_gguf(
        written(tmp_path / "x.gguf", tokens, merges=merges, pre="smollm", kinds=kinds)
    )
    texts = ["What is 12 + 345?", "<|im_start|>user\nSolve 3x = 9<|im_end|>\n", tokens[-1]]
    for text in texts:
        assert ours(text)["input_ids"] == want.encode(text).ids

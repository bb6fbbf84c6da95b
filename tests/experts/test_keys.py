import pytest

from gradejax.experts import keys
from gradejax.generation.sampling import Sampling

BASE = {"model": {"weights": "a", "text": "t"}, "prompt": "p", "sampling": Sampling(1.0),
        "seed": 0, "sample": 0, "max_new_tokens": 16, "pooling": "mean"}


def test_everything_that_changes_a_reply_changes_its_key(monkeypatch):
    variants = [{}, {"max_new_tokens": 4000}, {"model": {"weights": "b", "text": "t"}},
                {"model": {"weights": "a", "text": "u"}}, {"prompt": "q"}, {"seed": 1},
                {"sample": 1}, {"pooling": "last"}, {"sampling": Sampling(0.5)},
                {"sampling": Sampling(1.0, top_k=3)}, {"sampling": Sampling(1.0, top_p=0.5)}]
    made = [keys.reply_key(**(BASE | v)) for v in variants]
    monkeypatch.setattr(keys, "ENGINE_VERSION", keys.ENGINE_VERSION + 1)
    made.append(keys.reply_key(**BASE))
    assert len(set(made)) == len(variants) + 1


def test_equal_settings_written_differently_are_one_key():
    other = BASE | {"model": {"text": "t", "weights": "a"}, "sampling": Sampling(1)}
    assert keys.reply_key(**BASE) == keys.reply_key(**other)


def test_kind_keeps_equal_inputs_apart():
    assert keys.content_key("trunk", {"x": 1}) != keys.content_key("text", {"x": 1})


def test_canonical_json_refuses_nan_and_carries_any_text():
    with pytest.raises(ValueError):
        keys.canonical_json(float("nan"))
    assert keys.canonical_json({"b": "\ud800", "a": 1}) == '{"a":1,"b":"\\ud800"}'


def test_row_seeds_depend_on_the_row_alone_and_fit_int32():
    seeds = [keys.row_seed(s, p, n) for s in range(3) for p in "pq" for n in range(20)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**31 for s in seeds)
    # The digest of '[0,0,"p"]' begins 9c1280d1: little-endian 0xd180129c = 3514831516, halved;
    # unhalved it overflows int32.
    assert keys.row_seed(0, "p", 0) == 1757415758

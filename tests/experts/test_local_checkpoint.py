"""The provider over real folders in Hugging Face format (random weights), no fakes."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_experts import user
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gradejax.experts.ask import Query, ask_all
from gradejax.experts.features import FeatureStore
from gradejax.experts.keys import row_seed
from gradejax.experts.local import LocalProvider
from gradejax.experts.model_pool import ModelPool
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.spec import ExpertSpec
from gradejax.generation.decode import generate
from gradejax.generation.sampling import Sampling
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.hf_weights import save_checkpoint

WORDS = ["<end>", "<user>", "<reply>", "what", "is", "one", "two", "three", "?", "plus"]
TEMPLATE = ("{% for m in messages %}<user> {{ m.content }} {% endfor %}"
            "{% if add_generation_prompt %}<reply>{% endif %}")
WARM = Sampling(temperature=1.0)


def write_model(path, family, seed, width=8):
    config = DecoderConfig(family=family, vocab_size=13, width=width, num_layers=1, num_heads=2,
                           num_kv_heads=1, head_dim=4, mlp_width=12, max_positions=32,
                           stop_ids=(0,))
    params = jax.jit(Decoder(config).init)(jax.random.key(seed), jnp.zeros((1, 2), jnp.int32))
    save_checkpoint(path, config, params)
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", chat_template=TEMPLATE,
                            extra_special_tokens=["<user>", "<reply>"]).save_pretrained(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    write_model(path / "math", "phi3", 0)
    write_model(path / "head", "llama", 1, width=12)
    return path


def make_registry(folder):
    common = {"max_new_tokens": 6, "manager": "m"}
    return ExpertRegistry(
        (ExpertSpec(name="A1", model=str(folder / "math"), **common),
         ExpertSpec(name="A2", model=f"{folder}/./math/", sampling=WARM, seed=1, **common)),
        ExpertSpec(name="M0", model=str(folder / "head"), max_new_tokens=6), ("m",))


def make_queries():
    texts = ["what is one plus two ?", "one", "what is three ?", "two plus two plus two plus one ?"]
    return [Query(f"q{i}", user(t), user(t)) for i, t in enumerate(texts)]


class Counting:
    def __init__(self):
        self.rows = 0

    def __call__(self, model, params, prompts, **options):
        self.rows += len(prompts)
        return generate(model, params, prompts, **options)


def make_provider():
    engine = Counting()
    return LocalProvider(ModelPool(), generate=engine, batch_size=4), engine


def test_one_tree_in_memory_for_seats_that_share_a_folder(folder):
    pool, registry = ModelPool(), make_registry(folder)
    a1, a2, m0 = registry.load(pool)
    for x, y in zip(jax.tree.leaves(a1.params), jax.tree.leaves(a2.params), strict=True):
        assert x is y
    assert len(pool) == 2
    facts = registry.pool(pool)
    assert facts.widths == (8, 8, 12)
    count = sum(x.size for x in jax.tree.leaves(m0.params))
    assert facts.params[2] == count and facts.params[0] == facts.params[1] != count


def test_asked_once_then_read_and_equal_to_the_engine_itself(folder, tmp_path):
    registry, queries = make_registry(folder), make_queries()
    provider, engine = make_provider()
    first = ask_all(registry, queries, providers={"local": provider},
                    store=FeatureStore(tmp_path), chunk_size=3)
    assert engine.rows == 12
    again, engine = make_provider()
    second = ask_all(registry, queries, providers={"local": again}, store=FeatureStore(tmp_path))
    assert engine.rows == 0
    for name in registry.names:
        spec = registry[name]
        loaded, chat = provider.models.get(spec), provider.chat(spec)
        for query, a, b in zip(queries, first[name], second[name], strict=True):
            prompt = chat.render(query.expert)
            (alone,) = generate(
                loaded.model, loaded.params, [chat.encode(query.expert)], max_new_tokens=6,
                stop_ids=(0,), sampling=spec.sampling, seeds=[row_seed(spec.seed, prompt, 0)],
                batch_size=4, vocab=len(WORDS))
            # Equal alone and in company, generated and read back.
            assert a.tokens.tolist() == b.tokens.tolist() == alone.tokens
            np.testing.assert_allclose(a.hidden, alone.hidden, atol=1e-5)
            np.testing.assert_array_equal(a.hidden, b.hidden)
            np.testing.assert_allclose(b.logprobs, alone.logprobs, atol=1e-5)
            assert a.text == b.text == " ".join(
                WORDS[t] for t in alone.tokens if t not in (0, 1, 2))
            assert a.finish_reason == b.finish_reason == alone.finish_reason
            assert max(a.tokens) < len(WORDS)  # rows of the embedding without text
    assert any(a.tokens.tolist() != b.tokens.tolist()
               for a, b in zip(first["A1"], first["A2"], strict=True))


@pytest.mark.parametrize("edit", ["weights", "config", "stop", "template", "vocabulary"])
def test_whatever_changes_in_the_folder_makes_another_key(folder, tmp_path, edit):
    path = tmp_path / "math"
    shutil.copytree(folder / "math", path)
    spec = ExpertSpec(name="A1", model=str(path))
    before = make_provider()[0].describe(spec)
    same = make_provider()[0].describe(ExpertSpec(name="A1", model=str(folder / "math")))
    assert before == same  # a moved folder keeps its records
    if edit == "weights":
        write_model(path, "phi3", 7)
    elif edit == "stop":
        (path / "generation_config.json").write_text('{"eos_token_id": [0, 5]}')
    elif edit == "template":
        (path / "chat_template.jinja").write_text(TEMPLATE + " ")
    else:
        name = {"config": "config.json", "vocabulary": "tokenizer.json"}[edit]
        content = json.loads((path / name).read_text())
        if edit == "config":
            content["rope_theta"] = 500.0
        else:
            vocab = content["model"]["vocab"]
            vocab["one"], vocab["two"] = vocab["two"], vocab["one"]
        (path / name).write_text(json.dumps(content))
    assert make_provider()[0].describe(spec) != before


def test_a_prompt_beyond_the_context_stops_before_generating(folder):
    provider, engine = make_provider()
    queries = [*make_queries(), Query("q9", user("one " * 30), user("one"))]
    # 32 positions: <user>, 30 words, <reply> are 32 tokens, and 6 more to come.
    with pytest.raises(ValueError, match="question 'q9', expert 'A1': the prompt has 32 tokens; "
                                         "with max_new_tokens=6 .* context of 32"):
        ask_all(make_registry(folder), queries, providers={"local": provider})
    assert engine.rows == 0


def test_a_missing_folder_lists_the_models_beside_it(folder):
    with pytest.raises(ValueError, match="no model folder .*choose from .*head.*math"):
        ModelPool().get(ExpertSpec(name="A1", model=str(folder / "maths")))


def test_a_missing_folder_among_no_models_offers_no_empty_choice(tmp_path):
    with pytest.raises(ValueError, match="no model folder '.*/maths'; '.*' holds no model$"):
        ModelPool().get(ExpertSpec(name="A1", model=str(tmp_path / "maths")))


def test_a_hub_id_is_asked_for_by_its_revision(folder, monkeypatch):
    asked = []

    def from_hub(name, revision):
        asked.append((name, revision))
        return str(folder / "math")

    monkeypatch.setattr("gradejax.models.hub._from_hub", from_hub)
    spec = ExpertSpec(name="A1", model="owner/math", revision="v2")
    loaded = ModelPool().get(spec)
    assert asked == [("owner/math", "v2")]
    assert loaded.tokenizer is not None and loaded.width == 8
    with pytest.raises(ValueError, match="expert 'A1': model folder or file '/no/such' does not"):
        ModelPool().get(ExpertSpec(name="A1", model="/no/such"))


def test_no_tokenizer_and_no_template_are_named_and_plain_needs_none(folder, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(folder / "math", bare)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((bare / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    provider, _ = make_provider()
    with pytest.raises(ValueError, match="expert 'A1'.*has no chat template"):
        provider.describe(ExpertSpec(name="A1", model=str(bare)))
    plain = ExpertSpec(name="A1", model=str(bare), chat_template="plain")
    assert provider.render(plain, user("one")) == "one\n\n"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    with pytest.raises(ValueError, match="expert 'A1'.*has no tokenizer"):
        make_provider()[0].describe(plain)

"""Tokenizers and chat templates: ids as the tokenizer's own file says, one BOS, clear errors."""

import json
import shutil

import pytest
from hf_folders import ROOT
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from gradejax.generation.text import Chat, load_tokenizer

WORDS = ["<pad>", "<bos>", "<end>", "<user>", "<reply>", "<unk>", "What", "is", "7", "+", "12?",
         "plus", "é", "e\u0301", "Sum:"]  # fmt: skip
TEMPLATE = (
    "<bos> {% for m in messages %}<user> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<reply>{% endif %}"
)
MESSAGES = [{"role": "user", "content": "What is 7 + 12?"}]
TEXT = "What is 7 + 12? Sum: e\u0301 é plus"


def write_tokenizer(folder, *, model_type="qwen2", bos=True, **entries):
    """A word-level tokenizer that splits on white space, adds BOS and normalises nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / model_type / "config.json", folder)
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens(WORDS[:5])
    if bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", 1)]
        )
    raw.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>",
              "bos_token": "<bos>" if bos else None, "pad_token": "<pad>",
              "unk_token": "<unk>", "chat_template": TEMPLATE} | entries  # fmt: skip
    config = {k: v for k, v in config.items() if v is not ...}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("model_type", ["llama", "phi3", "qwen2"])
@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "Qwen2Tokenizer", None])
def test_ids_are_those_of_tokenizer_json(tmp_path, model_type, kind):
    """Whatever model_type or class stands beside it: no other splitting, no Unicode composition."""
    folder = write_tokenizer(tmp_path, model_type=model_type, tokenizer_class=kind or ...)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    right = raw.encode(TEXT, add_special_tokens=False).ids
    assert right == [6, 7, 8, 9, 10, 14, 13, 12, 11]  # e + accent stays apart from é
    chat = Chat(load_tokenizer(folder))
    assert chat.encode_text(TEXT) == right
    assert chat.vocab == len(WORDS)


def test_byte_level_digits_stay_single(tmp_path):
    """The tiny experts' own kind: byte-level BPE with single digits, under model_type qwen2."""
    folder = write_tokenizer(tmp_path)
    raw = Tokenizer(models.BPE())
    raw.normalizer = normalizers.Sequence([])
    raw.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    raw.decoder = decoders.ByteLevel()
    from tokenizers.trainers import BpeTrainer

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(["what is  the sum", "is  the same, don't"] * 50, trainer)
    raw.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    for text in ("what is  the sum of 1234?", "don't\n\n é e\u0301 ９", " 12 the"):
        ids = raw.encode(text, add_special_tokens=False).ids
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        assert tokenizer.decode(ids) == text


def test_templated_prompt_has_one_bos(tmp_path):
    """B05: the template writes BOS; adding special tokens again would give [1, 1, 3, ...]."""
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))
    ids = Chat(tokenizer).encode(MESSAGES)
    assert ids == [1, 3, 6, 7, 8, 9, 10, 4]
    assert tokenizer(Chat(tokenizer).render(MESSAGES))["input_ids"] == [1, *ids]  # the fault


def test_a_model_without_bos_gets_none(tmp_path):
    """B05, second case."""
    template = TEMPLATE.removeprefix("<bos> ")
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, bos=False, chat_template=template))
    assert Chat(tokenizer).encode(MESSAGES) == [3, 6, 7, 8, 9, 10, 4]


def test_plain_joins_contents_and_adds_the_base_models_bos(tmp_path):
    """T13: base models have no template and need their BOS."""
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, chat_template=...))
    chat = Chat(tokenizer, template="plain")
    messages = [{"role": "system", "content": "Sum:"}, *MESSAGES]
    assert chat.render(messages) == "Sum:\n\nWhat is 7 + 12?\n\n"
    assert chat.encode(messages) == [1, 14, 6, 7, 8, 9, 10]


def test_given_template_wins(tmp_path):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))
    chat = Chat(tokenizer, template="{% for m in messages %}{{ m.content }}{% endfor %} Sum:")
    assert chat.encode(MESSAGES) == [6, 7, 8, 9, 10, 14]
    assert chat.digest != Chat(tokenizer).digest


def test_template_in_a_file_of_its_own(tmp_path):
    """transformers 5 writes chat_template.jinja beside the tokenizer."""
    folder = write_tokenizer(tmp_path, chat_template=...)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    assert Chat(load_tokenizer(folder)).encode(MESSAGES) == [1, 3, 6, 7, 8, 9, 10, 4]


def test_no_template_says_what_can_be_given(tmp_path):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, chat_template=...))
    with pytest.raises(ValueError, match="tokenizer of Ada has no chat template; .* 'plain'"):
        Chat(tokenizer, name="Ada")


@pytest.mark.parametrize(
    "template",
    ["{% for m in messages %}{{ m.content }}", "{{ messages[0].none.deeper }}", "{{ 1 / 0 }}",
     "{{ messages | nofilter }}"],
)  # fmt: skip
def test_a_broken_template_is_found_before_anything_is_asked(tmp_path, template):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))
    with pytest.raises(ValueError, match="chat template of Ada is broken"):
        Chat(tokenizer, name="Ada", template=template)
    own = load_tokenizer(write_tokenizer(tmp_path / "own", chat_template=template))
    with pytest.raises(ValueError, match="chat template of Ada is broken"):
        Chat(own, name="Ada")


def test_a_template_that_refuses_a_role_says_so_in_its_own_words(tmp_path):
    refusing = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    chat = Chat(load_tokenizer(write_tokenizer(tmp_path)), name="Ada", template=refusing)
    assert chat.render(MESSAGES) == "What is 7 + 12?"
    with pytest.raises(ValueError, match="of Ada .* roles system, user: no system turns"):
        chat.render([{"role": "system", "content": "Sum:"}, *MESSAGES])
    only = refusing.replace("==", "!=")  # takes a system turn first, and nothing else
    system = [{"role": "system", "content": "Sum:"}]
    assert Chat(load_tokenizer(tmp_path), template=only).render(system) == "Sum:"


@pytest.mark.parametrize("role, kept", [("user", True), ("system", False), ("tool", False)])
def test_a_template_that_leaves_a_message_out_is_no_silence(tmp_path, role, kept):
    """Some know users and assistants only; the system prompt would never have been read."""
    template = (
        "{% for m in messages %}{% if m.role in ('user', 'assistant') %}{{ m.content | trim }} "
        "{% endif %}{% endfor %}Sum:"
    )
    chat = Chat(load_tokenizer(write_tokenizer(tmp_path)), name="Ada", template=template)
    messages = [{"role": role, "content": " plus é\n"}, *MESSAGES]
    if kept:
        assert chat.render(messages) == "plus é What is 7 + 12? Sum:"
    else:
        with pytest.raises(ValueError, match=f"of Ada leaves out the message of the role '{role}'"):
            chat.render(messages)


def test_templates_may_leave_out_what_a_reply_thought(tmp_path):
    template = "{% for m in messages %}{{ m.content.split('</think>')[-1] }} {% endfor %}"
    chat = Chat(load_tokenizer(write_tokenizer(tmp_path)), template=template)
    reply = {"role": "assistant", "content": "<think>is</think>12?"}
    assert chat.render([*MESSAGES, reply, *MESSAGES]) == "What is 7 + 12? 12? What is 7 + 12? "


def test_templates_may_write_a_message_otherwise(tmp_path):
    """gpt-oss gives what a tool said as JSON."""
    template = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    chat = Chat(load_tokenizer(write_tokenizer(tmp_path)), template=template)
    assert chat.render([{"role": "tool", "content": 'a "b"\n'}]) == r'"a \"b\"\n"'


@pytest.mark.parametrize("template", [TEMPLATE, "plain"])
@pytest.mark.parametrize("messages, words", [
    (None, "expected a list of messages, got None"), ([], "expected a list of messages"),
    ("What", "expected a list of messages, got 'What'"), (["What"], "expected a list of messages"),
    ([{"role": "user"}], "content of message 0 must be a text, got None"),
    ([*MESSAGES, {"role": "user", "content": None}], "content of message 1 must be a text"),
    ([{"role": "user", "content": [{"type": "text", "text": "What"}]}], "content of message 0"),
    ([{"role": None, "content": "What"}], "role of message 0 must be a text, got None"),
    ([{"role": "user", "content": "\udcff"}], r"message 0 holds the lone surrogate U\+DCFF"),
])  # fmt: skip
def test_what_is_no_chat(tmp_path, template, messages, words):
    """Content that is None or a list would stand in the prompt as Python writes it."""
    chat = Chat(load_tokenizer(write_tokenizer(tmp_path)), template=template)
    with pytest.raises(ValueError, match=words):
        chat.encode(messages)


def test_whatever_a_template_raises_is_said_in_words(tmp_path):
    template = "{{ messages[0].content }}{{ 1 // (2 - messages | length) }}"
    chat = Chat(load_tokenizer(write_tokenizer(tmp_path)), name="Ada", template=template)
    with pytest.raises(ValueError, match="of Ada does not take .* roles user, user: .*zero"):
        chat.render(MESSAGES * 2)


def test_no_tokenizer(tmp_path):
    shutil.copy(ROOT / "qwen2" / "config.json", tmp_path)
    assert load_tokenizer(tmp_path) is None
    with pytest.raises(ValueError, match="Ada has no tokenizer; expected tokenizer.json"):
        Chat(None, name="Ada")


def test_torn_tokenizer_names_the_folder(tmp_path):
    folder = write_tokenizer(tmp_path / "torn")
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="tokenizer in .*torn cannot be read"):
        load_tokenizer(folder)


def test_tokenizer_without_pad(tmp_path):
    """T12: any id fills padding, since masks decide; the vocabulary is not resized."""
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, pad_token=None))
    chat = Chat(tokenizer)
    assert tokenizer.pad_token_id is None and chat.pad_id == 2
    assert chat.vocab == len(WORDS)
    bare = load_tokenizer(write_tokenizer(tmp_path / "b", pad_token=None, eos_token=None))
    assert Chat(bare).pad_id == 0


def test_stop_ids_are_the_union_of_all_places(tmp_path):
    """B03: tokenizer 2, config 1, generation_config [1, 106]; only the tokenizer's would be [2]."""
    chat = Chat(load_tokenizer(write_tokenizer(tmp_path)))
    assert chat.stop_ids(1, [1, 106], None) == (1, 2, 106)
    assert chat.stop_ids() == (2,)
    bare = load_tokenizer(write_tokenizer(tmp_path / "b", eos_token=None))
    assert Chat(bare).stop_ids([32000], 32007) == (32000, 32007)


def test_decode_leaves_special_tokens_out(tmp_path):
    chat = Chat(load_tokenizer(write_tokenizer(tmp_path)))
    assert chat.decode([6, 7, 8, 2]) == "What is 7"


def test_digest_changes_with_what_makes_ids(tmp_path):
    one = Chat(load_tokenizer(write_tokenizer(tmp_path / "a"))).digest
    assert Chat(load_tokenizer(write_tokenizer(tmp_path / "b"))).digest == one
    other = write_tokenizer(tmp_path / "c", chat_template=TEMPLATE + " ")
    assert Chat(load_tokenizer(other)).digest != one
    swapped = write_tokenizer(tmp_path / "d")
    file = swapped / "tokenizer.json"
    text = file.read_text().replace('"What": 6', '"What": 66').replace('"is": 7', '"is": 6')
    file.write_text(text.replace('"What": 66', '"What": 7'))
    assert Chat(load_tokenizer(swapped)).digest != one


def test_a_long_text_is_counted_without_a_warning(tmp_path, caplog):
    """Lengths are checked against the context; transformers' own sentence would be noise."""
    write_tokenizer(tmp_path, model_max_length=8)
    chat = Chat(load_tokenizer(tmp_path), template=TEMPLATE)
    with caplog.at_level("WARNING"):
        assert len(chat.encode([{"role": "user", "content": "7 + " * 20}])) > 40
    assert not caplog.records

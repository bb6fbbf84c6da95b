"""The shipped experts: small, readable, and each a specialist."""

import functools
import pathlib

import numpy as np
import pytest

from experiments.tiny_corpus import questions
from experiments.train_tiny_experts import MAX_NEW_TOKENS, ROLES, role_config
from gradejax.generation.decode import generate
from gradejax.generation.sampling import GREEDY
from gradejax.generation.text import Chat, load_tokenizer
from gradejax.models.hf_weights import load_checkpoint
from gradejax.tasks.prompts import expert_messages
from gradejax.tasks.reasoning_gym import FAMILIES, ReasoningGymTask

FOLDER = pathlib.Path(__file__).parents[2] / "checkpoints"


@functools.cache
def loaded(name):
    return load_checkpoint(FOLDER / name), Chat(load_tokenizer(FOLDER / name), name=name)


def test_the_whole_folder_stays_under_ten_megabytes():
    size = sum(p.stat().st_size for p in FOLDER.rglob("*") if p.is_file())
    assert size < 10_000_000, size


@pytest.mark.parametrize("name", sorted(ROLES))
def test_each_folder_is_what_its_role_says(name):
    checkpoint, chat = loaded(name)
    assert checkpoint.config == role_config(ROLES[name], chat.tokenizer.eos_token_id)
    assert chat.stop_ids(checkpoint.generation_stop_ids) == (chat.tokenizer.eos_token_id,)
    text = "ANSWER: 1 2\n3 4"
    assert chat.decode(chat.encode_text(text)) == text


def test_three_families_of_architectures_mirror_the_papers_pool():
    assert {r.name: r.family for r in ROLES.values()} == {
        "orchestrator": "qwen2", "arithmetic": "qwen2", "logic": "phi3", "algorithmic": "llama",
    }  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_specialist_answers_its_own_family_and_no_other(name):
    """A guard against a broken file; the measured accuracies stand in BUILD_NOTES.md."""
    checkpoint, chat = loaded(name)
    right = {}
    for family in (name, FAMILIES[(FAMILIES.index(name) + 1) % 3]):
        examples = questions("heldout", 40, [family])
        prompts = [
            chat.encode(expert_messages(e.question, ReasoningGymTask.format_slot(e)))
            for e in examples
        ]
        replies = generate(
            checkpoint.model, checkpoint.params, prompts, max_new_tokens=MAX_NEW_TOKENS,
            stop_ids=chat.stop_ids(checkpoint.generation_stop_ids), sampling=GREEDY,
            seeds=[0] * len(prompts), batch_size=40,
        )  # fmt: skip
        right[family] = np.mean([
            ReasoningGymTask.judge(chat.decode(r.tokens), r.finish_reason, e).outcome.name
            == "RIGHT"
            for r, e in zip(replies, examples, strict=True)
        ])  # fmt: skip
    own, other = right.values()
    assert own > 0.45 and own > other + 0.3, right

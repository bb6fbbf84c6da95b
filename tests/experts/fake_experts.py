"""A language model with obvious answers, and the counts of what it was asked.

The fake's reply to a prompt is its own numbers said back, so that a test sees at once whose reply
it holds: its tokens are the prompt's first id, its last, and the row's seed (0 when greedy).
"""

import dataclasses
import hashlib

import numpy as np

from gradejax.experts.local import LocalProvider
from gradejax.experts.model_pool import LoadedModel, ModelPool
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.spec import ExpertSpec
from gradejax.generation.sampling import Sampling

WIDTHS = {"math": 5, "logic": 3, "head": 2}
SAMPLED = Sampling(temperature=1.0)


class FakeChat:
    """Renders messages as "role:content|..."; one token a character."""

    vocab, digest = 200, "t"

    def __init__(self, tokenizer, name, template):
        self.tokenizer = tokenizer

    def render(self, messages):
        return "|".join(f"{m['role']}:{m['content']}" for m in messages)

    def encode_text(self, rendered):
        return [ord(c) for c in rendered]

    def decode(self, tokens):
        return " ".join(map(str, tokens))

    def stop_ids(self, others):
        return (1, *others)


@dataclasses.dataclass
class FakeGeneration:
    tokens: list
    logprobs: list
    finish_reason: str
    hidden: np.ndarray


class FakeEngine:
    """Stands in for `generation.decode.generate`; `fail` raises for a model, `spoil` per prompt."""

    def __init__(self):
        self.batches = []  # (model, number of prompts)
        self.fail = {}
        self.spoil = None
        self.drop_one = False

    @property
    def calls(self):
        return sum(n for _, n in self.batches)

    def __call__(self, model, params, prompts, *, max_new_tokens, stop_ids, sampling, seeds,
                 pooling, batch_size, vocab):
        assert (vocab, tuple(stop_ids)) == (200, (1, 0))
        self.batches.append((model, len(prompts)))
        if model in self.fail:
            raise self.fail[model]
        rows = [self._row(model, p, int(s), sampling) for p, s in zip(prompts, seeds, strict=True)]
        return rows[1:] if self.drop_one else rows

    def _row(self, model, prompt, seed, sampling):
        text = "".join(map(chr, prompt))
        said = seed % 1000 if sampling.temperature else 0
        tokens = [prompt[0], prompt[-1], said]
        hidden = np.full(WIDTHS[model], len(prompt) + said / 1000, np.float32)
        if self.spoil is not None and self.spoil in text:
            hidden[0] = np.nan
        finish = "length" if "cut" in text else "stop"
        return FakeGeneration(tokens, [-0.1, -0.2, -0.3], finish, hidden)


class FakeLoader:
    """Loads the models of WIDTHS and counts how often."""

    def __init__(self, context=100_000, weights="w0"):
        self.loads = []
        self.context = context
        self.weights = weights

    def __call__(self, spec):
        if spec.model not in WIDTHS:
            raise ValueError(f"expert {spec.name!r}: no model folder {spec.model!r}")
        self.loads.append(spec.model)
        digest = hashlib.sha256(f"{spec.model}{self.weights}".encode()).hexdigest()
        return LoadedModel(
            identity=spec.identity, model=spec.model, params={"w": np.zeros(WIDTHS[spec.model])},
            tokenizer="fake", digest=digest,
            n_params=10 * WIDTHS[spec.model], width=WIDTHS[spec.model], context=self.context,
            stop_ids=(0,))


def make_registry(**changes):
    """GRADE's pool in small: A1–A2 share "math", B1 "logic", the orchestrator "head"."""
    agents = (
        ExpertSpec(name="A1", model="math", manager="arithmetic", **changes),
        ExpertSpec(name="A2", model="math", manager="arithmetic", sampling=SAMPLED, seed=1,
                   **changes),
        ExpertSpec(name="B1", model="logic", manager="logic", **changes),
    )
    return ExpertRegistry(agents, ExpertSpec(name="M0", model="head", **changes),
                          ("arithmetic", "logic"))


def make_provider(**options):
    """(provider, engine, loader) of one process."""
    engine, loader = FakeEngine(), FakeLoader(**options)
    return LocalProvider(ModelPool(loader), generate=engine, make_chat=FakeChat), engine, loader


def user(text):
    return [{"role": "user", "content": text}]

"""Everything a system needs of the frozen models: replies, encoder states, text embeddings.

All of it goes through the feature store, so what was computed once is never computed again.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from gradejax.experts.ask import Query, ask_all
from gradejax.experts.features import FeatureStore
from gradejax.experts.keys import content_key
from gradejax.experts.local import LocalProvider
from gradejax.experts.model_pool import LoadedModel, ModelPool
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.replies import PromptTooLong
from gradejax.generation.text import Chat
from gradejax.models import encoder
from gradejax.models.decoder import Decoder
from gradejax.systems.questions import QuestionSet, make_question_set
from gradejax.tasks.base import Example, Task
from gradejax.tasks.exemplars import EXEMPLARS
from gradejax.tasks.prompts import (
    chain_of_thought_messages,
    expert_messages,
    orchestrator_messages,
    question_text,
)
from gradejax.types import Pool


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A registry with its models in memory and the store of what they said.

    Attributes:
      registry: who the seats are.
      models: one copy per distinct model.
      provider: runs local ones.
      store: None keeps nothing.
    """

    registry: ExpertRegistry
    models: ModelPool
    provider: LocalProvider
    store: FeatureStore | None

    @property
    def providers(self):
        return {"local": self.provider}

    @property
    def trunk(self) -> LoadedModel:
        """The encoder's model: the orchestrator's [choice for small pools]."""
        return self.models.get(self.registry.orchestrator)

    @property
    def chat(self) -> Chat:
        return self.provider.chat(self.registry.orchestrator)

    def pool(self) -> Pool:
        return self.registry.pool(self.models)


def open_frozen(registry: ExpertRegistry, store: FeatureStore | None, *,
                batch_size: int = 64) -> Frozen:  # fmt: skip
    """Load every distinct model of a registry once.

    Raises:
      ValueError: a model that cannot be loaded, has no tokenizer, or a trunk too shallow.
    """
    models = ModelPool()
    provider = LocalProvider(models, batch_size=batch_size)
    for spec in registry.seats:
        provider.describe(spec)
    frozen = Frozen(registry, models, provider, store)
    encoder.trainable_layers(frozen.trunk.model)
    return frozen


def expert_facts(frozen: Frozen) -> dict[str, dict[str, Any]]:
    """{seat: digests of its weights and of its tokenizer and template, its stop ids}, as JSON.

    Kept by a run: other weights in the same folder are another expert.
    """
    names = ("weights", "text", "stop_ids")
    facts = {s.name: frozen.provider.describe(s) for s in frozen.registry.seats}
    return {seat: {name: f[name] for name in names} for seat, f in facts.items()}


def messages_of(example: Example, task: Task) -> Query:
    """The prompts that experts and the orchestrator get for a question.

    Where the example brings worked examples the experts get the chain-of-thought prompt; the
    orchestrator answers directly all the same [choice].
    """
    text, slot = question_text(example), task.format_slot(example)
    shown = example.meta.get(EXEMPLARS)
    expert = chain_of_thought_messages(text, slot, shown) if shown else expert_messages(text, slot)
    return Query(example.id, expert, orchestrator_messages(text, slot))


def fits(frozen: Frozen, example: Example, task: Task) -> bool:
    """Does the orchestrator's prompt for a question fit its context?

    It answers and encodes every question, so nothing can be done with one that it cannot read;
    what an expert cannot read is missing from that expert alone.
    """
    spec = frozen.registry.orchestrator
    prompt = frozen.provider.render(spec, messages_of(example, task).orchestrator)
    try:
        frozen.provider.encode(spec, prompt, example.id)
    except PromptTooLong:
        return False
    return True


def _cached(frozen: Frozen, kind: str, texts: Sequence[str], compute: Callable, **facts):
    """Arrays of texts by content: from the store, else computed together and stored."""
    loaded, chat = frozen.trunk, frozen.chat
    base = {"weights": loaded.digest, "text": chat.digest, **facts}
    keys = [content_key(kind, base | {"input": text}) for text in texts]
    found = [None] * len(keys) if frozen.store is None else frozen.store.get_arrays(keys)
    todo = sorted({i for i, f in enumerate(found) if f is None})
    if todo:
        fresh = compute([texts[i] for i in todo])
        named = {keys[i]: {"x": x} for i, x in zip(todo, fresh, strict=True)}
        if frozen.store is not None:
            frozen.store.put_arrays(named)
        for i in todo:
            found[i] = named[keys[i]]
    return [f["x"] for f in found]


def _tokens(frozen: Frozen, texts: Sequence[str]) -> list[list[int]]:
    ids = frozen.chat.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    # A text without tokens (an empty answer) still needs a place to be read at.
    return [row or [frozen.chat.pad_id] for row in ids]


def unreadable(frozen: Frozen, examples: Sequence[Example]) -> list[str | None]:
    """For each question why the encoder cannot read it, None where it can."""
    limit = frozen.trunk.model.config.max_positions
    return [
        None if len(tokens) <= limit
        else f"too_long: the question has {len(tokens)} tokens; the encoder reads at most {limit}"
        for tokens in _tokens(frozen, [question_text(e) for e in examples])
    ]  # fmt: skip


def trunk_states(frozen: Frozen, examples: Sequence[Example]) -> list[np.ndarray]:
    """The encoder's cached state of each question's bare text, [T_i, E] float32."""
    model, params = frozen.trunk.model, frozen.trunk.params
    return _cached(
        frozen, "trunk", [question_text(e) for e in examples],
        lambda texts: encoder.states_below(model, params, _tokens(frozen, texts)),
        trainable=encoder.TRAINABLE,
    )  # fmt: skip


def query_vectors(frozen: Frozen, states: Sequence[np.ndarray], batch_size: int = 256):
    """Frozen query vectors [Q, E]: the untouched trunk's pooled final state of each question."""
    model: Decoder = frozen.trunk.model
    top = encoder.top_params(model, frozen.trunk.params)
    run = jax.jit(lambda trunk: encoder.encode(model.config, top, trunk))
    length = -(-max(len(s) for s in states) // 8) * 8
    order = sorted(range(len(states)), key=lambda i: len(states[i]))
    out = np.zeros((len(states), model.config.width), np.float32)
    for at in range(0, len(order), batch_size):
        rows = order[at : at + batch_size]
        some = [states[i] for i in rows] + [states[rows[0]]] * (batch_size - len(rows))
        out[rows] = np.asarray(run(encoder.pack_trunk(some, batch_size, length)))[: len(rows)]
    return out


def text_embeddings(frozen: Frozen, texts: Sequence[str]) -> np.ndarray:
    """Frozen embeddings of candidate answers [n, E]: mean of the trunk's cached states [choice]."""
    model, params = frozen.trunk.model, frozen.trunk.params

    def compute(some):
        states = encoder.states_below(model, params, _tokens(frozen, some))
        return [s.mean(axis=0) for s in states]

    return np.stack(_cached(frozen, "text_embedding", list(texts), compute))


def ask_questions(
    frozen: Frozen, examples: Sequence[Example], task: Task, families: Sequence[str], *,
    first_id: int, progress: Callable | None = None, on_error: str = "raise",
    on_long: str = "error",
) -> QuestionSet:  # fmt: skip
    """Ask every seat every question, and turn what they said into a QuestionSet.

    Args:
      frozen: the pool.
      examples: with distinct ids.
      task: how replies are read.
      families: names of the questions' families.
      first_id: global row id of the first question.
      progress: see ``experts.ask.ask``.
      on_error: "raise" or "missing".
      on_long: "error" or "missing", for a prompt that does not fit its model's context.

    Raises:
      ValueError: no questions, or duplicate ids.
    """
    if not examples:
        raise ValueError("there are no questions to ask; the data set or split is empty")
    replies = ask_all(
        frozen.registry, [messages_of(e, task) for e in examples], providers=frozen.providers,
        store=frozen.store, progress=progress, on_error=on_error, on_long=on_long,
    )  # fmt: skip
    states = trunk_states(frozen, examples)
    return make_question_set(
        examples, task, frozen.pool(), replies, states, query_vectors(frozen, states),
        lambda texts: text_embeddings(frozen, texts), families, first_id=first_id,
        orchestrator=frozen.registry.orchestrator.name,
    )  # fmt: skip

"""Everything a system needs of the frozen models: replies, encoder states, text embeddings.

All of it goes through the feature store, so what was computed once is never computed again.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from gradejax.experts.api import OpenAIProvider
from gradejax.experts.ask import Query, Request, ask, ask_all
from gradejax.experts.budget import Budget, Limits
from gradejax.experts.features import FeatureStore
from gradejax.experts.keys import canonical_json, content_key
from gradejax.experts.local import LocalProvider
from gradejax.experts.model_pool import LoadedModel, ModelPool
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.replies import Missing, PromptTooLong, Reply
from gradejax.experts.spec import ExpertSpec
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
      api: asks those behind APIs.
    """

    registry: ExpertRegistry
    models: ModelPool
    provider: LocalProvider
    store: FeatureStore | None
    api: OpenAIProvider = dataclasses.field(default_factory=OpenAIProvider)

    @property
    def providers(self):
        return {"local": self.provider, "openai": self.api}

    @property
    def trunk(self) -> LoadedModel:
        """The encoder's model: the orchestrator's [choice for small pools]."""
        return self.models.get(self.registry.orchestrator)

    @property
    def chat(self) -> Chat:
        return self.provider.chat(self.registry.orchestrator)

    def pool(self) -> Pool:
        return self.registry.pool(self.models)

    def weights(self, spec: ExpertSpec) -> str:
        """What two seats have in common exactly when they ask the same weights."""
        if spec.remote:
            return content_key("model", self.api.describe(spec))
        return self.models.get(spec).digest


def open_frozen(registry: ExpertRegistry, store: FeatureStore | None, *,
                batch_size: int = 64, limits: Limits = Limits()) -> Frozen:  # fmt: skip
    """Load every distinct local model of a registry once.

    Args:
      registry: who the seats are.
      store: None keeps nothing.
      batch_size: rows generated at once.
      limits: what may be spent at APIs.

    Raises:
      ValueError: a model that cannot be loaded, has no tokenizer, or a trunk too shallow; a key
        that is not set.
    """
    models = ModelPool()
    provider = LocalProvider(models, batch_size=batch_size)
    frozen = Frozen(registry, models, provider, store, OpenAIProvider(budget=Budget(limits)))
    for spec in registry.seats:
        frozen.providers[spec.provider].describe(spec)
    for name in registry.unknown_params:
        warnings.warn(
            f"expert {name!r}: the active parameters of {registry[name].model!r} are unknown and "
            "count as 0 in cost and figures; declare api.active_params", stacklevel=2,
        )  # fmt: skip
    encoder.trainable_layers(frozen.trunk.model)
    return frozen


def expert_facts(frozen: Frozen) -> dict[str, dict[str, Any]]:
    """{seat: digests of its weights and of its tokenizer and template, its stop ids}, as JSON.

    Kept by a run: other weights in the same folder are another expert. Of an expert behind an API
    the server, the model's name and its revision are known.
    """
    facts = {}
    for spec in frozen.registry.seats:
        known = frozen.providers[spec.provider].describe(spec)
        names = ("server", "model", "revision") if spec.remote else ("weights", "text", "stop_ids")
        facts[spec.name] = {name: known[name] for name in names}
    return facts


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


def check_lengths(frozen: Frozen, examples: Sequence[Example], task: Task) -> None:
    """Refuse questions whose prompt does not fit a seat's model, before anything is asked.

    Servers count for themselves, so seats behind APIs are left out.

    Raises:
      PromptTooLong: the first such question and seat, and how many prompts are too long in all.
    """
    head = frozen.registry.orchestrator
    local = [spec for spec in frozen.registry.seats if not spec.remote]
    first, count = None, 0
    seen: dict[tuple, PromptTooLong | None] = {}
    for example in examples:
        query = messages_of(example, task)
        for spec in local:
            messages = spec.messages(query.orchestrator if spec is head else query.expert)
            # seats that differ by their seed alone have one prompt
            key = (spec.identity, spec.chat_template, spec.max_new_tokens, canonical_json(messages))
            if key not in seen:
                seen[key] = None
                try:
                    prompt = frozen.provider.render(spec, messages)
                    frozen.provider.encode(spec, prompt, example.id)
                except PromptTooLong as error:
                    seen[key] = error
            if seen[key] is not None:
                first, count = first or seen[key], count + 1
    if first is not None:
        raise PromptTooLong(
            f"{first} ({count} such calls in all; shorten the questions, lower max_new_tokens, or "
            "leave them out with on_long='missing')"
        )


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
    """Frozen embeddings of texts [n, E]: mean of the trunk's cached states [choice].

    A text beyond the trunk's context (a long reply of an API) is read in windows of it.
    """
    model, params = frozen.trunk.model, frozen.trunk.params
    context = model.config.max_positions

    def compute(some):
        rows = _tokens(frozen, some)
        windows = [ids[at : at + context] for ids in rows for at in range(0, len(ids), context)]
        states = iter(encoder.states_below(model, params, windows))
        out = []
        for ids in rows:
            parts = [next(states) for _ in range(0, len(ids), context)]
            out.append(np.concatenate(parts).mean(axis=0))
        return out

    return np.stack(_cached(frozen, "text_embedding", list(texts), compute))


def ask_seats(frozen: Frozen, requests: Sequence[Request], **options) -> list[Reply | Missing]:
    """Ask as ``experts.ask.ask`` does; replies of APIs carry their message to the gates.

    Such an expert shows no states: its feature is the query encoder's embedding of its reply. It is
    made here and not stored with the reply, so that another orchestrator re-embeds and does not
    pay again.
    """
    replies = ask(
        frozen.registry, requests, providers=frozen.providers, store=frozen.store, **options
    )
    bare = [
        i for i, (request, reply) in enumerate(zip(requests, replies, strict=True))
        if isinstance(reply, Reply) and frozen.registry[request.agent].remote
    ]  # fmt: skip
    if bare:
        vectors = text_embeddings(frozen, [replies[i].text for i in bare])
        for i, vector in zip(bare, vectors, strict=True):
            replies[i] = dataclasses.replace(replies[i], hidden=vector)
    return replies


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
        frozen.registry, [messages_of(e, task) for e in examples],
        by=functools.partial(ask_seats, frozen), progress=progress, on_error=on_error,
        on_long=on_long,
    )  # fmt: skip
    states = trunk_states(frozen, examples)
    return make_question_set(
        examples, task, frozen.pool(), replies, states, query_vectors(frozen, states),
        lambda texts: text_embeddings(frozen, texts), families, first_id=first_id,
        orchestrator=frozen.registry.orchestrator.name,
    )  # fmt: skip

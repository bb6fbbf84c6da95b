"""Asking the pool: what is stored is read, the rest is generated in batches and stored."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gradejax.experts.features import FeatureStore
from gradejax.experts.keys import canonical_json, reply_key, row_seed
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.replies import ExpertCallError, Missing, PromptTooLong, Reply
from gradejax.experts.segments import Record
from gradejax.experts.spec import ExpertSpec

logger = logging.getLogger(__name__)

Messages = list[dict[str, str]]


class Provider(Protocol):
    """Who runs models. See `LocalProvider` for what each method promises."""

    def describe(self, spec: ExpertSpec) -> Mapping[str, Any]: ...

    def render(self, spec: ExpertSpec, messages: Messages) -> str: ...

    def encode(self, spec: ExpertSpec, prompt: str, question_id: str) -> list[int]: ...

    def reply(self, spec: ExpertSpec, prompts: Sequence[list[int]], seeds: Sequence[int]
              ) -> list[Reply | Missing]: ...


class Query(NamedTuple):
    """A question as it is put to the pool: messages for the experts and for the orchestrator."""

    id: str
    expert: Messages
    orchestrator: Messages


class Request(NamedTuple):
    """One call: a seat, a question, its messages, and which of several samples."""

    agent: str
    question_id: str
    messages: Messages
    sample: int = 0


class Progress(NamedTuple):
    """How far the asking is: distinct calls done of all, how many were stored, whose turn."""

    done: int
    total: int
    stored: int
    model: str


class TooManyMissing(RuntimeError):
    """So many calls failed that figures from the rest would mislead."""


@dataclasses.dataclass(frozen=True)
class _Call:
    spec: ExpertSpec
    question_id: str
    prompt: str
    sample: int


def ask_all(registry: ExpertRegistry, queries: Sequence[Query], *,
            agents: Sequence[str] | None = None, **options: Any
            ) -> dict[str, list[Reply | Missing]]:
    """Ask every seat (or those named in `agents`) every question.

    Args:
      registry, options: as in `ask`.
      queries: with distinct ids.

    Returns: for each seat, its replies in the order of `queries`.
    """
    twice = [i for i, n in collections.Counter(q.id for q in queries).items() if n > 1]
    if twice:
        raise ValueError(f"duplicate question ids {twice[:5]} ({len(twice)} in all)")
    names = registry.names if agents is None else tuple(agents)
    head = registry.orchestrator.name
    requests = [Request(name, q.id, q.orchestrator if name == head else q.expert)
                for name in names for q in queries]
    replies, n = ask(registry, requests, **options), len(queries)
    return {name: replies[i * n:(i + 1) * n] for i, name in enumerate(names)}


def ask(registry: ExpertRegistry, requests: Sequence[Request], *,
        providers: Mapping[str, Provider], store: FeatureStore | None = None,
        on_error: str = "raise", on_long: str = "error", chunk_size: int = 512,
        max_missing: float = 0.5, progress: Callable[[Progress], None] | None = None
        ) -> list[Reply | Missing]:
    """Answer `requests`: from the store, else by the models, in batches by model and settings.

    Replies are stored chunk by chunk, so a killed run loses at most the chunk it was at, and a
    second run calls no model. Failures are never stored. Equal calls (two seats with the same
    model, prompt, settings and seed) are made once. Every prompt is checked against its model's
    context before anything is generated.

    Args:
      registry: who the seats are.
      requests: distinct (agent, question_id, sample).
      providers: by the name that specs use.
      store: None keeps nothing.
      on_error: "raise", or "missing": what a provider raises makes the calls of that chunk
        Missing, and the others go on.
      on_long: "error", or "missing" for a prompt that does not fit its model.
      chunk_size: calls between two saves.
      max_missing: largest share of failed calls (too-long prompts not counted) to go on with.
      progress: called after the store was read and after each chunk.

    Returns: Reply or Missing for each request, in order.

    Raises: ValueError (bad arguments, unknown seats); PromptTooLong; TooManyMissing;
      StoreWriteError (disk full); what a provider raises, under on_error="raise".
    """
    _check(requests, on_error, on_long, chunk_size)
    results: dict[str, Reply | Missing] = {}
    keys, calls = _keys(registry, requests, providers, results, on_error)
    if store is not None:
        for key, record in zip(calls, store.get_many(list(calls)), strict=True):
            if record is not None:
                results[key] = Reply.from_record(record.meta, record.arrays)
    stored = sum(key in results for key in calls)
    say = progress or (lambda _: None)
    say(Progress(len(results), len(set(keys)), stored, ""))
    todo = {key: call for key, call in calls.items() if key not in results}
    prompts = _encode(todo, providers, results, on_long, on_error)
    groups: dict[tuple, list[str]] = {}
    for key in prompts:
        spec = todo[key].spec
        settings = (spec.identity, spec.sampling, spec.max_new_tokens, spec.pooling)
        groups.setdefault(settings, []).append(key)
    for group in groups.values():
        # Rows of like length together: less padding. The result does not depend on it.
        group.sort(key=lambda key: len(prompts[key]))
        for i in range(0, len(group), chunk_size):
            chunk = group[i:i + chunk_size]
            replies = _run([todo[k] for k in chunk], [prompts[k] for k in chunk], providers,
                           on_error)
            finished = {k: r for k, r in zip(chunk, replies, strict=True) if isinstance(r, Reply)}
            results |= dict(zip(chunk, replies, strict=True))
            if store is not None:
                store.counters.calls += len(chunk)
                store.put_many(Record(k, *r.to_record()) for k, r in finished.items())
            if on_error == "raise":
                _raise_first(todo[chunk[0]].spec, replies)
            say(Progress(len(results), len(set(keys)), stored, todo[chunk[0]].spec.model))
    answers = [results[key] for key in keys]
    _check_missing(answers, max_missing)
    return answers


def _check(requests: Sequence[Request], on_error: str, on_long: str, chunk_size: int) -> None:
    for name, value, choices in (("on_error", on_error, ("raise", "missing")),
                                 ("on_long", on_long, ("error", "missing"))):
        if value not in choices:
            raise ValueError(f"unknown {name} {value!r}; choose from {list(choices)}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    counts = collections.Counter((r.agent, r.question_id, r.sample) for r in requests)
    twice = [what for what, n in counts.items() if n > 1]
    if twice:
        raise ValueError(f"the same (agent, question, sample) is asked twice: {twice[:5]} "
                         f"({len(twice)} in all)")


def _keys(registry, requests, providers, results, on_error):
    """The key of each request, and {key: call} without doubles.

    Under on_error="missing", a model that cannot be loaded makes all calls of its seat missing,
    and a prompt that cannot be rendered its own; these have keys of their own in `results`.
    """
    facts: dict[str, Mapping[str, Any] | None] = {}
    rendered: dict[tuple, str] = {}
    keys: list[str] = []
    calls: dict[str, _Call] = {}
    for agent, question_id, messages, sample in requests:
        spec = registry[agent]
        key = f"missing {agent}"
        keys.append(key)
        try:
            provider = _provider(providers, spec)
            if agent not in facts:
                facts[agent] = None
                facts[agent] = provider.describe(spec)
            if facts[agent] is None:
                continue  # its failure stands in `results` under `key`
            keys[-1] = key = f"missing {agent} {question_id} {sample}"
            messages = spec.messages(messages)
            memo = (spec.identity, spec.chat_template, canonical_json(messages))
            if memo not in rendered:
                rendered[memo] = provider.render(spec, messages)
            prompt = rendered[memo]
            keys[-1] = reply_key(
                model=facts[agent], prompt=prompt, sampling=spec.sampling, seed=spec.seed,
                sample=sample, max_new_tokens=spec.max_new_tokens, pooling=spec.pooling)
            calls.setdefault(keys[-1], _Call(spec, question_id, prompt, sample))
        except Exception as error:
            results[key] = _failure(error, spec, on_error)
    return keys, calls


def _encode(todo, providers, results, on_long, on_error) -> dict[str, list[int]]:
    prompts: dict[str, list[int]] = {}
    long: list[PromptTooLong] = []
    for key, call in todo.items():
        provider = _provider(providers, call.spec)
        try:
            prompts[key] = provider.encode(call.spec, call.prompt, call.question_id)
        except PromptTooLong as error:
            long.append(error)
            results[key] = Missing("too_long", str(error))
        except Exception as error:
            results[key] = _failure(error, call.spec, on_error)
    if long and on_long == "error":
        raise PromptTooLong(f"{long[0]} ({len(long)} such calls in all; shorten the questions, "
                            "lower max_new_tokens, or leave them out with on_long='missing')")
    return prompts


def _run(calls: list[_Call], prompts: list[list[int]], providers, on_error
         ) -> list[Reply | Missing]:
    spec = calls[0].spec
    try:
        seeds = [row_seed(c.spec.seed, c.prompt, c.sample) for c in calls]
        replies = _provider(providers, spec).reply(spec, prompts, seeds)
        if len(replies) != len(calls):
            raise RuntimeError(f"provider {spec.provider!r} gave {len(replies)} replies to "
                               f"{len(calls)} prompts")
    except Exception as error:
        return [_failure(error, spec, on_error)] * len(calls)
    return replies


def _raise_first(spec: ExpertSpec, replies: Sequence[Reply | Missing]) -> None:
    failed = [r for r in replies if isinstance(r, Missing)]
    if failed:
        raise ExpertCallError(failed[0].state, f"expert {spec.name!r}: {failed[0].message} "
                                               f"({len(failed)} of {len(replies)} calls)")


def _provider(providers: Mapping[str, Provider], spec: ExpertSpec) -> Provider:
    if spec.provider not in providers:
        raise ValueError(f"expert {spec.name!r}: no provider {spec.provider!r}; "
                         f"choose from {sorted(providers)}")
    return providers[spec.provider]


def _failure(error: Exception, spec: ExpertSpec, on_error: str) -> Missing:
    """`error` as a missing reply, or raised again."""
    if on_error == "raise":
        raise error
    logger.error("expert %r (%s) failed", spec.name, spec.model, exc_info=error)
    if isinstance(error, ExpertCallError):
        return error.missing
    return Missing("failed", f"{type(error).__name__}: {error}")


def _check_missing(answers: Sequence[Reply | Missing], limit: float) -> None:
    failed = [a for a in answers if isinstance(a, Missing) and a.state != "too_long"]
    if len(failed) > limit * len(answers):
        states = dict(collections.Counter(a.state for a in failed))
        raise TooManyMissing(f"{len(failed)} of {len(answers)} calls failed {states}, over the "
                             f"limit of {limit:.0%}; the first: {failed[0].message}")

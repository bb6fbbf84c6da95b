"""Asking the pool: what is stored is read, the rest is asked and stored.

Local models generate in batches, one model after another; experts behind APIs are asked at the same
time, each in a lane of its own.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gradejax.experts.calls import (
    Call,
    Groups,
    Messages,
    Provider,
    failure,
    provider_of,
    raise_first,
    run_chunk,
)
from gradejax.experts.features import FeatureStore
from gradejax.experts.keys import canonical_json, reply_key
from gradejax.experts.lanes import RemoteLane, check, wait_for
from gradejax.experts.progress import Progress, Tracker
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.replies import Missing, PromptTooLong, Reply
from gradejax.experts.segments import Record
from gradejax.experts.spec import ExpertSpec


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


class TooManyMissing(RuntimeError):
    """So many calls failed that figures from the rest would mislead."""


def ask_all(registry: ExpertRegistry, queries: Sequence[Query], *,
            agents: Sequence[str] | None = None, by: Callable | None = None, **options: Any
            ) -> dict[str, list[Reply | Missing]]:
    """Ask every seat (or those named in `agents`) every question.

    Args:
      registry, options: as in `ask`.
      queries: with distinct ids.
      by: what asks: (requests, **options) -> replies; `ask` with this registry by default.

    Returns: for each seat, its replies in the order of `queries`.
    """
    twice = [i for i, n in collections.Counter(q.id for q in queries).items() if n > 1]
    if twice:
        raise ValueError(f"duplicate question ids {twice[:5]} ({len(twice)} in all)")
    names = registry.names if agents is None else tuple(agents)
    head = registry.orchestrator.name
    requests = [Request(name, q.id, q.orchestrator if name == head else q.expert)
                for name in names for q in queries]
    by = by or functools.partial(ask, registry)
    replies, n = by(requests, **options), len(queries)
    return {name: replies[i * n:(i + 1) * n] for i, name in enumerate(names)}


def ask(registry: ExpertRegistry, requests: Sequence[Request], *,
        providers: Mapping[str, Provider], store: FeatureStore | None = None,
        on_error: str = "raise", on_long: str = "error", chunk_size: int = 512,
        max_missing: float = 0.5, progress: Callable[[Progress], None] | None = None
        ) -> list[Reply | Missing]:
    """Answer `requests`: from the store, else by the models, in batches by model and settings.

    Replies are stored chunk by chunk, those of APIs about every second, so a killed run loses at
    most what it was at, and a second run calls no model. When asking is broken off (Ctrl-C), calls
    under way at APIs get ten seconds to end and are stored. Failures are never stored: they are
    asked again by the next run. Equal calls (two seats with the same model, prompt, settings and
    seed) are made once. Every prompt for a local model is checked against its context before
    anything is asked.

    Args:
      registry: who the seats are.
      requests: distinct (agent, question_id, sample).
      providers: by the name that specs use.
      store: None keeps nothing.
      on_error: "raise", or "missing": what a provider raises makes the calls of that chunk
        Missing, and the others go on. To "raise", a call that an API leaves missing is an error
        too: no further call begins, those under way end, and what there is was stored.
      on_long: "error", or "missing" for a prompt that does not fit its model.
      chunk_size: calls between two saves.
      max_missing: largest share of failed calls (too-long prompts not counted) to go on with.
      progress: called after the store was read and after each chunk, one call at a time, perhaps
        from another thread.

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
    tracker = Tracker(progress, done=len(results), total=len(set(keys)), stored=stored)
    tracker.start()
    todo = {key: call for key, call in calls.items() if key not in results}
    prompts = _encode(todo, providers, results, on_long, on_error)
    _ask_groups(Groups(todo, prompts), providers, store, on_error, chunk_size, tracker, results)
    answers = [results[key] for key in keys]
    _check_missing(answers, max_missing)
    return answers


def _ask_groups(groups: Groups, providers, store, on_error, chunk_size, tracker: Tracker,
                results: dict[str, Reply | Missing]) -> None:
    """Ask everything, local models and APIs at the same time."""
    lock = threading.Lock()

    def save(lane: str, spec: ExpertSpec, found: Mapping[str, Reply | Missing]) -> None:
        with lock:
            results.update(found)
            if store is not None:
                store.counters.calls += len(found)
                store.put_many(Record(k, *r.to_record()) for k, r in found.items()
                               if isinstance(r, Reply))
        tracker.finished(lane, len(found), spec.model)

    local, remote = [], []
    for group in groups.groups:
        away = hasattr(provider_of(providers, groups.spec(group)), "submit")
        (remote if away else local).append(group)
        tracker.lane(f"api {len(remote)}" if away else "local", len(group))
    lanes: list[RemoteLane] = []
    try:
        for i, group in enumerate(remote, start=1):
            spec = groups.spec(group)
            lanes.append(RemoteLane(
                provider_of(providers, spec), spec, group, [groups.prompts[k] for k in group],
                groups.seeds(group), functools.partial(save, f"api {i}", spec), on_error))
            lanes[-1].start()
        for group in local:
            spec = groups.spec(group)
            for i in range(0, len(group), chunk_size):
                chunk = group[i:i + chunk_size]
                replies = run_chunk(spec, [groups.prompts[k] for k in chunk], groups.seeds(chunk),
                               providers, on_error)
                save("local", spec, dict(zip(chunk, replies, strict=True)))
                if on_error == "raise":
                    raise_first(spec, replies)
                check(lanes)
        wait_for(lanes)
    except BaseException:
        for lane in lanes:
            lane.break_off()
        raise


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
    calls: dict[str, Call] = {}
    for agent, question_id, messages, sample in requests:
        spec = registry[agent]
        key = f"missing {agent}"
        keys.append(key)
        try:
            provider = provider_of(providers, spec)
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
            calls.setdefault(keys[-1], Call(spec, question_id, prompt, sample))
        except Exception as error:
            results[key] = failure(error, spec, on_error)
    return keys, calls


def _encode(todo, providers, results, on_long, on_error) -> dict[str, list[int]]:
    prompts: dict[str, list[int]] = {}
    long: list[PromptTooLong] = []
    for key, call in todo.items():
        provider = provider_of(providers, call.spec)
        try:
            prompts[key] = provider.encode(call.spec, call.prompt, call.question_id)
        except PromptTooLong as error:
            long.append(error)
            results[key] = Missing("too_long", str(error))
        except Exception as error:
            results[key] = failure(error, call.spec, on_error)
    if long and on_long == "error":
        raise PromptTooLong(f"{long[0]} ({len(long)} such calls in all; shorten the questions, "
                            "lower max_new_tokens, or leave them out with on_long='missing')")
    return prompts


def _check_missing(answers: Sequence[Reply | Missing], limit: float) -> None:
    failed = [a for a in answers if isinstance(a, Missing) and a.state != "too_long"]
    if len(failed) > limit * len(answers):
        states = dict(collections.Counter(a.state for a in failed))
        raise TooManyMissing(f"{len(failed)} of {len(answers)} calls failed {states}, over the "
                             f"limit of {limit:.0%}; the first: {failed[0].message}")

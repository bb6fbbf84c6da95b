"""Calls to be made: which may be asked together, by whom, and what to make of a failure."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gradejax.experts.keys import row_seed
from gradejax.experts.replies import ExpertCallError, Missing, Reply
from gradejax.experts.spec import ExpertSpec

logger = logging.getLogger(__name__)

Messages = list[dict[str, str]]


class Provider(Protocol):
    """Who runs models. See `LocalProvider` for what each method promises. One that also has
    `submit` (`OpenAIProvider`) is asked while the others compute."""

    def describe(self, spec: ExpertSpec) -> Mapping[str, Any]: ...

    def render(self, spec: ExpertSpec, messages: Messages) -> str: ...

    def encode(self, spec: ExpertSpec, prompt: str, question_id: str) -> list[int]: ...

    def reply(self, spec: ExpertSpec, prompts: Sequence[list[int]], seeds: Sequence[int]
              ) -> list[Reply | Missing]: ...


@dataclasses.dataclass(frozen=True)
class Call:
    spec: ExpertSpec
    question_id: str
    prompt: str
    sample: int


class Groups:
    """Calls by what may be asked together: the same model, settings and server."""

    def __init__(self, todo: Mapping[str, Call], prompts: Mapping[str, Any]):
        self.todo, self.prompts = todo, prompts
        groups: dict[tuple, list[str]] = {}
        for key in prompts:
            spec = todo[key].spec
            settings = (spec.identity, spec.sampling, spec.max_new_tokens, spec.pooling, spec.api)
            groups.setdefault(settings, []).append(key)
        self.groups = list(groups.values())
        for group in self.groups:
            # Rows of like length together: less padding. The result does not depend on it.
            group.sort(key=lambda key: len(prompts[key]))

    def spec(self, group: Sequence[str]) -> ExpertSpec:
        return self.todo[group[0]].spec

    def seeds(self, group: Sequence[str]) -> list[int]:
        calls = [self.todo[key] for key in group]
        return [row_seed(c.spec.seed, c.prompt, c.sample) for c in calls]


def provider_of(providers: Mapping[str, Provider], spec: ExpertSpec) -> Provider:
    if spec.provider not in providers:
        raise ValueError(f"expert {spec.name!r}: no provider {spec.provider!r}; "
                         f"choose from {sorted(providers)}")
    return providers[spec.provider]


def run_chunk(spec: ExpertSpec, prompts: list[list[int]], seeds: list[int], providers, on_error
         ) -> list[Reply | Missing]:
    try:
        replies = provider_of(providers, spec).reply(spec, prompts, seeds)
        if len(replies) != len(prompts):
            raise RuntimeError(f"provider {spec.provider!r} gave {len(replies)} replies to "
                               f"{len(prompts)} prompts")
    except Exception as error:
        return [failure(error, spec, on_error)] * len(prompts)
    return replies


def raise_first(spec: ExpertSpec, replies: Sequence[Reply | Missing]) -> None:
    failed = [r for r in replies if isinstance(r, Missing)]
    if failed:
        raise ExpertCallError(failed[0].state, f"expert {spec.name!r}: {failed[0].message} "
                                               f"({len(failed)} of {len(replies)} calls)")


def failure(error: Exception, spec: ExpertSpec, on_error: str) -> Missing:
    """`error` as a missing reply, or raised again."""
    if on_error == "raise":
        raise error
    logger.error("expert %r (%s) failed", spec.name, spec.model, exc_info=error)
    if isinstance(error, ExpertCallError):
        return error.missing
    return Missing("failed", f"{type(error).__name__}: {error}")

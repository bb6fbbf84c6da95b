"""A system as plain JSON, so that a checkpoint can be used without the config that made it."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from gradejax.experts.endpoint import endpoint_of
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.spec import ExpertSpec
from gradejax.generation.sampling import Sampling
from gradejax.tasks.answers import KINDS, make_task
from gradejax.tasks.base import Task
from gradejax.tasks.prompts import FORMATS

ROOT = pathlib.Path(__file__).resolve().parents[2]


def find_model(path: str, *, stored: bool = False) -> str:
    """A model folder as given, or else beside the package (the shipped checkpoints).

    Args:
      path: as a config or a checkpoint names it.
      stored: a checkpoint's: what ``pool_entries`` wrote relative is beside the package, whatever
        the working directory holds under that name.
    """
    beside = (ROOT / path).exists()
    if beside and (stored or not pathlib.Path(path).exists()):
        return str(ROOT / path)
    return path


def _sampling(name: str, entry: Mapping[str, Any]) -> Sampling:
    known = {f.name: f.type for f in dataclasses.fields(Sampling)}
    for key, value in entry.items():
        if key not in known:
            raise ValueError(
                f"pool: {name}.sampling has the unknown entry {key!r}; choose from {sorted(known)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"pool: {name}.sampling.{key} must be a number, got {value!r}")
    try:
        return Sampling(**entry)
    except ValueError as error:
        raise ValueError(f"pool: {name}.sampling: {error}") from error


def _spec(name: str, entry: Mapping[str, Any], stored: bool) -> ExpertSpec:
    known = {f.name for f in dataclasses.fields(ExpertSpec)} - {"name"}
    extra = set(entry) - known
    if extra:
        raise ValueError(
            f"pool: {name} has unknown entries {sorted(extra)}; choose from {sorted(known)}"
        )
    if "model" not in entry:
        raise ValueError(f"pool: {name} needs a model (a folder in Hugging Face format)")
    fields = dict(entry)
    if isinstance(fields.get("sampling"), Mapping):
        fields["sampling"] = _sampling(name, fields["sampling"])
    if isinstance(fields.get("api"), Mapping):
        try:
            fields["api"] = endpoint_of(fields["api"])
        except ValueError as error:
            raise ValueError(f"pool: {name}: {error}") from None
    # elsewhere a model is a name, not a folder here
    if fields.get("provider", "local") == "local" and isinstance(fields["model"], str):
        fields["model"] = find_model(fields["model"], stored=stored)
    return ExpertSpec(name=name, **fields)


def registry_of(pool: Mapping[str, Any], *, stored: bool = False) -> ExpertRegistry:
    """A registry from {managers, agents: {name: spec entries}, orchestrator: spec entries}.

    Agents stand in the order of ``pool["order"]`` where given, else as listed. ``stored`` says that
    ``pool_entries`` wrote it; see ``find_model``.

    Raises:
      ValueError: unknown entries, managers or names; the message lists the choices.
    """
    agents = pool["agents"]
    order = list(pool.get("order") or agents)
    if sorted(order) != sorted(agents):
        raise ValueError(
            f"pool.order names {order}; it must name each agent once: {sorted(agents)}"
        )
    return ExpertRegistry(
        agents=tuple(_spec(name, agents[name], stored) for name in order),
        orchestrator=_spec("M0", pool["orchestrator"], stored),
        managers=tuple(pool["managers"]),
    )


def pool_entries(registry: ExpertRegistry) -> dict[str, Any]:
    """The inverse of ``registry_of``, JSON-serialisable.

    Folders are named so that they are found from any working directory: relative to the package
    where they lie beside it (the checkout may move), else absolute.
    """

    def entries(spec: ExpertSpec) -> dict[str, Any]:
        out = dataclasses.asdict(spec)
        out.pop("name")
        if spec.provider == "local" and os.path.isdir(spec.model):
            path = pathlib.Path(os.path.abspath(spec.model))
            beside = path.is_relative_to(ROOT)
            out["model"] = str(path.relative_to(ROOT) if beside else path)
        return out

    return {
        "managers": list(registry.managers),
        "order": [a.name for a in registry.agents],
        "agents": {a.name: entries(a) for a in registry.agents},
        "orchestrator": entries(registry.orchestrator),
    }


def task_of(entry: Mapping[str, Any]) -> Task:
    """The task that an entry means.

    {benchmark}: a published one, with its own grader; {name: "reasoning_gym"}: the fixed families,
    with {generator}: any others; else {name, kind, format}: a kind of ``tasks.answers``.

    Raises:
      ValueError: unknown; lists the choices.
    """
    if entry.get("benchmark"):
        from gradejax.tasks.benchmarks import task_named

        return task_named(entry["benchmark"])
    if entry["name"] == "reasoning_gym":
        if entry.get("generator"):
            from gradejax.tasks.benchmarks.reasoning_gym import AnyReasoningGymTask

            return AnyReasoningGymTask
        from gradejax.tasks.reasoning_gym import ReasoningGymTask

        return ReasoningGymTask
    kind = entry.get("kind")
    if kind not in KINDS:
        raise ValueError(
            f"task {entry['name']!r} has the unknown kind {kind!r}; choose from "
            f"{', '.join(KINDS)}, or use the task 'reasoning_gym'"
        )
    slot = entry.get("format") or ("choice" if kind == "choice" else "open")
    if slot not in FORMATS:
        raise ValueError(f"unknown format {slot!r}; choose from {', '.join(sorted(FORMATS))}")
    return make_task(entry["name"], kind, FORMATS[slot])

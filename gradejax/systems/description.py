"""A system as plain JSON, so that a checkpoint can be used without the config that made it."""

import dataclasses
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


def find_model(path: str) -> str:
    """A model folder as given, or else beside the package (the shipped checkpoints)."""
    if not pathlib.Path(path).exists() and (ROOT / path).exists():
        return str(ROOT / path)
    return path


def _spec(name: str, entry: Mapping[str, Any]) -> ExpertSpec:
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
        fields["sampling"] = Sampling(**fields["sampling"])
    if isinstance(fields.get("api"), Mapping):
        try:
            fields["api"] = endpoint_of(fields["api"])
        except ValueError as error:
            raise ValueError(f"pool: {name}: {error}") from None
    if fields.get("provider", "local") == "local":
        fields["model"] = find_model(fields["model"])  # elsewhere it is a name, not a folder here
    return ExpertSpec(name=name, **fields)


def registry_of(pool: Mapping[str, Any]) -> ExpertRegistry:
    """A registry from {managers, agents: {name: spec entries}, orchestrator: spec entries}.

    Agents stand in the order of ``pool["order"]`` where given, else as listed.

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
        agents=tuple(_spec(name, agents[name]) for name in order),
        orchestrator=_spec("M0", pool["orchestrator"]),
        managers=tuple(pool["managers"]),
    )


def pool_entries(registry: ExpertRegistry) -> dict[str, Any]:
    """The inverse of ``registry_of``, JSON-serialisable."""

    def entries(spec: ExpertSpec) -> dict[str, Any]:
        out = dataclasses.asdict(spec)
        out.pop("name")
        path = pathlib.Path(spec.model)
        if path.is_absolute() and path.is_relative_to(ROOT):
            out["model"] = str(path.relative_to(ROOT))  # the checkout may move
        return out

    return {
        "managers": list(registry.managers),
        "order": [a.name for a in registry.agents],
        "agents": {a.name: entries(a) for a in registry.agents},
        "orchestrator": entries(registry.orchestrator),
    }


def task_of(entry: Mapping[str, Any]) -> Task:
    """The task that {name, kind, format} means: "reasoning_gym", or a kind of ``tasks.answers``.

    Raises:
      ValueError: unknown; lists the choices.
    """
    if entry["name"] == "reasoning_gym":
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

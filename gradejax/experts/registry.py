"""The pool of experts as an immutable value: agents, their managers, and the orchestrator."""

from __future__ import annotations

import collections
import dataclasses

from gradejax.experts.model_pool import LoadedModel, ModelPool
from gradejax.experts.spec import ExpertSpec
from gradejax.types import Pool


@dataclasses.dataclass(frozen=True)
class ExpertRegistry:
    """Who may be asked. `swap` makes another registry; this one never changes.

    Attributes:
      agents: A seats, in the order of every [A] axis.
      orchestrator: M0, the last column of every [A + 1] axis; has no manager.
      managers: M names, in the order of every [M] axis; each owns at least one agent.

    Raises: ValueError for duplicate names, unknown or idle managers, listing the choices.
    """

    agents: tuple[ExpertSpec, ...]
    orchestrator: ExpertSpec
    managers: tuple[str, ...]

    def __post_init__(self):
        # Lists are what a config holds; tuples are what keeps the registry a value.
        object.__setattr__(self, "agents", tuple(self.agents))
        object.__setattr__(self, "managers", tuple(self.managers))
        if not self.agents:
            raise ValueError("a registry needs at least one agent")
        for what, names in (("expert", self.names), ("manager", self.managers)):
            twice = [name for name, n in collections.Counter(names).items() if n > 1]
            if twice:
                raise ValueError(f"duplicate {what} names {twice} in {list(names)}")
        for spec in self.agents:
            if spec.manager not in self.managers:
                raise ValueError(f"agent {spec.name!r}: unknown manager {spec.manager!r}; "
                                 f"choose from {list(self.managers)}")
        if self.orchestrator.manager is not None:
            raise ValueError(f"orchestrator {self.orchestrator.name!r} has the manager "
                             f"{self.orchestrator.manager!r}; it must have none")
        if self.orchestrator.remote:
            raise ValueError(f"orchestrator {self.orchestrator.name!r} is behind an API; it must "
                             "be local, since its lower layers encode the questions")
        idle = [m for m in self.managers if all(m != a.manager for a in self.agents)]
        if idle:
            raise ValueError(f"managers {idle} own no agent; agents and their managers are "
                             f"{ {a.name: a.manager for a in self.agents} }")

    @property
    def seats(self) -> tuple[ExpertSpec, ...]:
        """All A + 1 specs, the orchestrator last."""
        return (*self.agents, self.orchestrator)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.seats)

    def __getitem__(self, name: str) -> ExpertSpec:
        for spec in self.seats:
            if spec.name == name:
                return spec
        raise ValueError(f"unknown expert {name!r}; choose from {list(self.names)}")

    def swap(self, name: str, spec: ExpertSpec) -> ExpertRegistry:
        """A registry in which the seat `name` is taken by `spec`.

        The seat keeps its name and its manager, since gates and results refer to the seat.

        Raises: ValueError for an unknown seat, or a `spec` that names another manager.
        """
        seat = self[name]
        if spec.manager not in (None, seat.manager):
            raise ValueError(f"swap of {name!r}: the new spec names the manager "
                             f"{spec.manager!r}, the seat belongs to {seat.manager!r}")
        new = dataclasses.replace(spec, name=name, manager=seat.manager)
        if name == self.orchestrator.name:
            return dataclasses.replace(self, orchestrator=new)
        agents = tuple(new if a.name == name else a for a in self.agents)
        return dataclasses.replace(self, agents=agents)

    def load(self, models: ModelPool) -> tuple[LoadedModel, ...]:
        """The loaded models of the local seats, in order; equal models are one object."""
        return tuple(models.get(spec) for spec in self.seats if not spec.remote)

    def pool(self, models: ModelPool, *, candidate_width: int | None = None,
             trunk_width: int | None = None) -> Pool:
        """Static facts of the pool.

        Args:
          models: where the models are, or are loaded.
          candidate_width: width of a candidate's embedding; by default the orchestrator's width.
          trunk_width: width of the encoder's cached state; by default the orchestrator's width.

        An expert behind an API shows no states: its feature is the trunk's embedding of its reply.
        Its parameters are those that its spec declares, else 0 (see `unknown_params`).
        """
        own = models.get(self.orchestrator).width
        trunk_width = own if trunk_width is None else trunk_width
        sizes = [
            (spec.api.active_params or 0, trunk_width) if spec.remote
            else (models.get(spec).n_params, models.get(spec).width) for spec in self.seats]
        return Pool(
            agents=tuple(a.name for a in self.agents),
            managers=self.managers,
            manager_of=tuple(self.managers.index(a.manager) for a in self.agents),
            params=tuple(params for params, _ in sizes),
            widths=tuple(width for _, width in sizes),
            candidate_width=own if candidate_width is None else candidate_width,
            trunk_width=trunk_width,
        )

    @property
    def unknown_params(self) -> tuple[str, ...]:
        """Seats whose active parameters nobody has declared; they count as 0, so figures of cost
        that include them are lower bounds."""
        return tuple(s.name for s in self.seats if s.remote and s.api.active_params is None)

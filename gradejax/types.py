"""Small frozen structures that every layer shares, and the legend of dimension letters.

Q questions, G rollouts of a question's group, A agents (the orchestrator M0 is extra and stands
last: column A of A + 1), M managers, D depths, C candidate answers, T tokens, E a model's width.
This file imports nothing of ours.
"""

import collections.abc
import dataclasses

import flax.struct
import jax
import numpy as np

Array = jax.Array | np.ndarray

NO_ANSWER = -1  # an agent that gave no answer, or a gold answer that no candidate equals
NO_MANAGER = -1  # a rollout that did not go through one manager


@flax.struct.dataclass
class Trunk:
    """The encoder's cached states of a batch of questions, packed several to a row.

    Questions differ much in length; packed, a step computes their tokens and little padding.

    Attributes:
      states: [R, L, E], the state below the encoder's trainable layers.
      segments: [R, L] int32, 1 + the question's row in the batch; 0 is padding.
      positions: [R, L] int32, each question's own count of tokens.
      row: [Q] int32, the packed row that holds the question.
      slot: [Q] int32, the place of its last token there.
    """

    states: Array
    segments: Array
    positions: Array
    row: Array
    slot: Array


@flax.struct.dataclass
class Records:
    """What the frozen models said of a set of questions: one row a question.

    Rows with ``valid`` False are padding and change nothing. NumPy on the host, jax on devices.

    Attributes:
      ids: [Q] int32, the question's global row id, stable over a run.
      valid: [Q] bool.
      family: [Q] int32, index into the run's family names; reporting only.
      features: A + 1 arrays [Q, D_a], each agent's pooled last hidden state; M0 last.
      available: [Q, A+1] bool, the record exists (a failed call is missing, not wrong).
      answers: [Q, A+1] int32, index of the candidate that the agent gave, or NO_ANSWER.
      candidates: [Q, C, D_c], frozen embedding of each candidate's text.
      candidate_mask: [Q, C] bool, real candidates.
      choices: [Q] bool, True where all candidates are offered (multiple choice); False where the
        candidates are the distinct answers of the agents, indexed by the lowest that gave them.
      gold: [Q, C] bool, the right candidates: none, one, or several that no canonical form joins
        (two right programs); or [Q] int32, the index of the only one, NO_ANSWER for none.
      tokens: [Q, A+1] int32, prompt and reply tokens of each agent's call.
    """

    ids: Array
    valid: Array
    family: Array
    features: tuple[Array, ...]
    available: Array
    answers: Array
    candidates: Array
    candidate_mask: Array
    choices: Array
    gold: Array
    tokens: Array

    @property
    def num_questions(self) -> int:
        return self.valid.shape[0]

    def take(self, rows) -> "Records":
        """Records of the given rows, in that order."""
        return jax.tree.map(lambda x: x[rows], self)


@flax.struct.dataclass
class Batch:
    """What one step reads: the records of Q questions and their packed encoder states."""

    records: Records
    trunk: Trunk


@flax.struct.dataclass
class Metrics(collections.abc.Mapping):
    """name → (sum, count), in one array: fetched from a device at once, not scalar by scalar.

    Attributes:
      names: K names.
      values: [K, 2], sums and counts.
    """

    names: tuple[str, ...] = flax.struct.field(pytree_node=False)
    values: Array

    def __getitem__(self, name: str) -> tuple[Array, Array]:
        try:
            row = self.names.index(name)
        except ValueError:
            raise KeyError(name) from None
        return self.values[row, 0], self.values[row, 1]

    def __iter__(self):
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclasses.dataclass(frozen=True)
class Pool:
    """Static facts of a pool of A agents under M managers, with the orchestrator M0 last.

    Attributes:
      agents: A names.
      managers: M names.
      manager_of: A indices into ``managers``.
      params: A + 1 parameter counts.
      widths: A + 1 feature widths.
      candidate_width: width of a candidate's frozen embedding.
      trunk_width: width of the encoder's cached state.
    """

    agents: tuple[str, ...]
    managers: tuple[str, ...]
    manager_of: tuple[int, ...]
    params: tuple[int, ...]
    widths: tuple[int, ...]
    candidate_width: int
    trunk_width: int

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def num_managers(self) -> int:
        return len(self.managers)

    @property
    def total_params(self) -> int:
        """Parameters evaluated when everyone, M0 included, is asked."""
        return sum(self.params)

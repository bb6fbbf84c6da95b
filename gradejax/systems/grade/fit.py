"""What training GRADE on a set of questions needs besides the step: start, batches, reference."""

import dataclasses
import functools

import jax
import numpy as np

from gradejax.coordination import calibration as calibration_lib
from gradejax.coordination import memory as memory_lib
from gradejax.systems.grade import infer
from gradejax.systems.grade.learner import StepInput, TrainState, fresh_state, train_step
from gradejax.systems.grade.network import (
    GateLogits,
    Network,
    Params,
    Shape,
    init_params,
    message_moments,
)
from gradejax.systems.grade.policy import Rollout
from gradejax.systems.questions import QuestionSet, split_batch
from gradejax.types import NO_ANSWER, Batch, Records

# Batches whose packed size is looked up in advance, so that the compiled shape does not depend on
# how many steps a run is asked for (a resumed run may be asked for more).
LOOK_AHEAD = 1000


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Which questions each batch holds: a function of (seed, batch number) alone.

    Every epoch is a fresh order of all questions; its last batch may be short (masked rows).

    Attributes:
      num_questions: in the training set.
      batch_size: Q.
      seed: of the order.
    """

    num_questions: int
    batch_size: int
    seed: int

    @property
    def per_epoch(self) -> int:
        return -(-self.num_questions // self.batch_size)

    @functools.lru_cache(maxsize=4)  # noqa: B019 - a frozen value of three ints
    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, epoch)).permutation(self.num_questions)

    def rows(self, step: int) -> np.ndarray:
        """Places of a batch's questions, at most ``batch_size``."""
        epoch, place = divmod(step, self.per_epoch)
        return self._order(epoch)[place * self.batch_size : (place + 1) * self.batch_size]


def row_length(questions: QuestionSet) -> int:
    """Length of the packed encoder rows: the longest question, rounded up."""
    return -(-questions.longest // 8) * 8


def whole(questions: QuestionSet, rows: np.ndarray, size: int) -> Batch:
    """A batch for inference, one packed row a question at the most."""
    length = row_length(questions)
    return questions.batch(rows, size=size, packed_rows=size, row_length=length)


@functools.partial(jax.jit, static_argnames="shape")
def _raw(shape: Shape, params: Params, records: Records):
    return Network(shape).apply(params.network, records, method="raw_messages")


def first_statistics(shape: Shape, params: Params, records: Records):
    """μ̂ and σ̂ from one pass over the cached training features."""
    exists = records.available & records.valid[:, None]
    shift = calibration_lib.typical(_raw(shape, params, records), exists)
    return calibration_lib.from_moments(message_moments(shape, params, records, shift), shift)


def blank_rollout(shape: Shape, q: int) -> Rollout:
    """A rollout of the right shapes, in which nobody is asked."""
    a, g, config = shape.pool.num_agents, shape.config.group_size, shape.config
    none = lambda *s: np.zeros(s, bool)  # noqa: E731
    return Rollout(
        depth=np.zeros((q, g), np.int32), manager=np.full((q, g), NO_ANSWER, np.int32),
        asked=none(q, g, a),
        order=np.zeros((q, g, config.fixed_k), np.int32) if config.fixed_k else None,
        edges=none(q, g, a, a),
        relaxed=np.zeros((q, g, a, a), np.float32) if config.read_relaxation == "concrete"
        else None,
        members=none(q, g, a + 1), kept=none(q, g, a + 1),
    )  # fmt: skip


def start(shape: Shape, questions: QuestionSet, trunk_params, seed: int) -> TrainState:
    """The state at step 0: a function of the seed and the training set.

    Args:
      shape: static.
      questions: the training set.
      trunk_params: the frozen trunk's tree; its last layers are copied.
      seed: of the parameters and of every draw of the run.
    """
    init_key, run_key = jax.random.split(jax.random.key(seed))
    few = whole(questions, np.arange(min(2, len(questions))), 2)
    params = jax.jit(
        lambda key, trunk: init_params(shape, key, trunk, few, blank_rollout(shape, 2))
    )(init_key, trunk_params)
    statistics = first_statistics(shape, params, questions.records)
    # One program: made eagerly, the optimizer's zeros are dozens of small compilations.
    return jax.jit(lambda p, c, k: fresh_state(shape, p, c, k))(params, statistics, run_key)


def reference_logits(shape: Shape, state: TrainState, questions: QuestionSet, size: int = 128
                     ) -> GateLogits:  # fmt: skip
    """π_ref's logits of every training question: those of the policy at step 0, memory empty.

    Args:
      shape: static.
      state: at step 0.
      questions: the training set.
      size: questions computed at once.
    """
    memory = memory_lib.empty(shape.config.memory_slots, shape.config.d, shape.dtype)
    parts = []
    for at in range(0, len(questions), size):
        rows = np.arange(at, min(at + size, len(questions)))
        batch = whole(questions, rows, size)
        logits = infer.gate_logits(shape, state.params, batch, memory, state.calibration)
        parts.append(jax.tree.map(lambda x, n=len(rows): np.asarray(x)[:n], logits))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


@dataclasses.dataclass(frozen=True)
class Batches:
    """Step number → StepInput (NumPy), the same whatever came before.

    Attributes:
      questions: the training set.
      reference: π_ref's logits.
      schedule: which questions when.
      devices: shares to cut a batch into; 0 gives no device axis.
      packed_rows: R of the encoder's states (of each share).
      length: L.
    """

    questions: QuestionSet
    reference: GateLogits
    schedule: Schedule
    devices: int
    packed_rows: int
    length: int

    def __call__(self, step: int) -> StepInput:
        rows = self.schedule.rows(step)
        size = self.schedule.batch_size
        size += -size % max(self.devices, 1)

        def pad(x):
            return np.concatenate([x[rows], np.zeros((size - len(rows), *x.shape[1:]), x.dtype)])

        reference = jax.tree.map(pad, self.reference)
        share = size // max(self.devices, 1)
        # Beyond the look-ahead a batch may need more: then it is compiled anew, never cut.
        need = [
            self.questions.rows_needed(rows[at : at + share], self.length)
            for at in range(0, len(rows), share)
        ]
        packed = max(self.packed_rows, *need)
        if not self.devices:
            batch = self.questions.batch(rows, size=size, packed_rows=packed,
                                         row_length=self.length)  # fmt: skip
            return StepInput(batch, reference)
        batch = self.questions.batch(rows, size=size, packed_rows=size, row_length=self.length)
        batch = split_batch(batch, self.devices, packed, self.length)
        shares = lambda x: x.reshape(self.devices, -1, *x.shape[1:])  # noqa: E731
        return StepInput(batch, jax.tree.map(shares, reference))


def batches(questions: QuestionSet, reference: GateLogits, schedule: Schedule, *, devices: int = 0
            ) -> Batches:  # fmt: skip
    """Batches of a training set, with packed rows enough for the first LOOK_AHEAD of them."""
    length = row_length(questions)
    size = schedule.batch_size + -schedule.batch_size % max(devices, 1)
    share = size // max(devices, 1)
    need = 0
    for step in range(LOOK_AHEAD):
        rows = schedule.rows(step)
        for at in range(0, len(rows), share):
            need = max(need, questions.rows_needed(rows[at : at + share], length))
    return Batches(questions, reference, schedule, devices, min(need + 1, share), length)


@functools.cache
def step_of(shape: Shape):
    """The pure step (state, inputs, axis_name=None) of this shape: one object, compiled once."""
    return functools.partial(train_step, shape)

"""GRADE's parameters, and what they make of a batch of questions.

Everything here depends on the question only: it is computed once and broadcast over the G
rollouts. N = A + 1 counts the orchestrator M0, which stands last.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from gradejax.coordination import calibration as calibration_lib
from gradejax.coordination import memory as memory_lib
from gradejax.coordination.adapters import Adapters
from gradejax.coordination.assignment import AssignmentGate
from gradejax.coordination.calibration import Calibrate, Calibration
from gradejax.coordination.combination import Combination, Combined
from gradejax.coordination.cross_read import ReadGate, read_matrix
from gradejax.coordination.depth import POOL, DepthGate
from gradejax.coordination.managers import Managers
from gradejax.coordination.memory import Memory, MemoryRead
from gradejax.coordination.prune import PruneGate
from gradejax.models import encoder
from gradejax.models.config import DecoderConfig
from gradejax.systems.grade.config import GradeConfig
from gradejax.systems.grade.policy import Rollout
from gradejax.types import Array, Batch, Pool, Records


@flax.struct.dataclass
class GateLogits:
    """The logits that every decision of a question is drawn from.

    depth [Q, 3]; scores [Q, A]; read [Q, A, A]; prune [Q, A].
    """

    depth: Array
    scores: Array
    read: Array
    prune: Array


@flax.struct.dataclass
class Question:
    """What the system knows of a question before any decision.

    h0 [Q, d] encoded question; h [Q, d] after the memory; raw [Q, N, d] messages m; messages
    [Q, N, d] m̃, calibrated; logits; cut_logits, the same values whose gradient stops at the gates.
    """

    h0: Array
    h: Array
    raw: Array
    messages: Array
    logits: GateLogits
    cut_logits: GateLogits


@dataclasses.dataclass(frozen=True)
class Shape:
    """Static facts that fix the parameters: settings, pool, the encoder's trunk, dtype."""

    config: GradeConfig
    pool: Pool
    trunk: DecoderConfig
    dtype: Any = jnp.float32


class Network(nn.Module):
    """All trainable parts but the encoder's layers (those are a copy of the trunk's tree)."""

    shape: Shape

    def setup(self):
        c, pool = self.shape.config, self.shape.pool
        kw = {"d": c.d, "dtype": self.shape.dtype}
        dt = self.shape.dtype
        self.project = nn.Dense(c.d, dtype=dt, param_dtype=dt)
        self.project_norm = nn.LayerNorm(dtype=dt, param_dtype=dt)
        self.memory = MemoryRead(**kw)
        self.managers = Managers(pool.num_managers, **kw)
        self.depth = DepthGate(**kw)
        self.assignment = AssignmentGate(pool.manager_of, **kw)
        self.read = ReadGate(**kw)
        self.prune = PruneGate(**kw)
        self.adapters = Adapters(pool.widths, **kw)
        self.calibrate = Calibrate(pool.num_agents + 1, **kw)
        self.combination = Combination(pool.num_agents + 1, read_mask=c.read_mask, **kw)

    def gates(self, h, messages) -> GateLogits:
        """h [Q, d], messages m̃ [Q, N, d] → logits."""
        agents = messages[..., :-1, :]
        return GateLogits(
            depth=self.depth(h),
            scores=self.assignment(h, self.managers(h)),
            read=self.read(agents),
            prune=self.prune(h, agents),
        )

    def raw_messages(self, records: Records):
        """m [Q, N, d]."""
        return self.adapters(records.features, records.available)

    def question(self, pooled, records: Records, memory: Memory, calibration: Calibration,
                 own) -> Question:  # fmt: skip
        """See ``Question``; ``own`` [Q] ids hides each question's own slot, None shows all."""
        h0 = self.project_norm(self.project(pooled))
        h = self.memory(h0, memory, own)
        raw = self.raw_messages(records)
        messages = self.calibrate(raw, calibration)
        # A missing agent's message is a constant (β − γμ̂/σ̂); masks keep it out of everything.
        # The regularisers see the same gates on inputs that are cut off: one call serves both.
        inputs = jax.tree.map(
            lambda x: jnp.concatenate([x, jax.lax.stop_gradient(x)]), (h, messages)
        )
        both = self.gates(*inputs)
        q = h.shape[0]
        return Question(
            h0, h, raw, messages,
            logits=jax.tree.map(lambda x: x[:q], both),
            cut_logits=jax.tree.map(lambda x: x[q:], both),
        )  # fmt: skip

    def combine(self, question: Question, records: Records, rollout: Rollout) -> Combined:
        """Scores the candidates of the rollouts; see ``coordination.combination``."""
        members, kept, read = combination_masks(question.logits, rollout)
        probs = jax.nn.sigmoid(question.logits.prune)
        probs = jnp.concatenate([probs, jnp.ones_like(probs[:, :1])], axis=-1)[:, None]
        # z̄ is weighted by v at depth 2 only; elsewhere nothing is pruned and v is uniform.
        weights = jnp.where((rollout.depth == POOL)[..., None], probs, jnp.ones_like(probs))
        return self.combination(
            question.h, question.messages, records.answers, records.candidates,
            records.candidate_mask, records.choices, members, kept, read, weights,
        )  # fmt: skip

    def __call__(self, pooled, records, memory, calibration, rollout):
        """Touches every parameter, for initialisation."""
        question = self.question(pooled, records, memory, calibration, None)
        return self.combine(question, records, rollout)


def combination_masks(logits: GateLogits, rollout: Rollout):
    """members and kept [Q, G, N] and R [Q, G, N, N] of recorded decisions."""
    size = rollout.members.shape[-1]
    grow = ((0, 0), (0, 0), (0, 1), (0, 1))
    edges = rollout.edges if rollout.relaxed is None else rollout.relaxed
    edges = jnp.pad(edges, grow)
    assert edges.shape[-1] == size
    return rollout.members, rollout.kept, read_matrix(edges, rollout.members)


@flax.struct.dataclass
class Params:
    """Trainable parameters: the encoder's copied layers φ, and the network."""

    encoder: Any
    network: Any


def question(shape: Shape, params: Params, batch: Batch, memory: Memory,
             calibration: Calibration, *, own_slots: bool) -> Question:  # fmt: skip
    """Run the encoder and every gate on a batch.

    Args:
      shape: static.
      params: trainable.
      batch: Q questions.
      memory: fixed within a batch.
      calibration: fixed within a batch.
      own_slots: True lets a question read its own memory slot (evaluation).
    """
    pooled = encoder.encode(shape.trunk, params.encoder, batch.trunk)
    return Network(shape).apply(
        params.network, pooled, batch.records, memory, calibration,
        None if own_slots else batch.records.ids, method="question",
    )  # fmt: skip


def init_params(shape: Shape, key, trunk_params, batch: Batch, rollout: Rollout) -> Params:
    """Fresh parameters; φ is a copy of the frozen trunk's last layers.

    Args:
      shape: static.
      key: consumed.
      trunk_params: the frozen trunk's tree.
      batch: any batch, for shapes.
      rollout: any rollout of it.
    """
    from gradejax.models.decoder import Decoder

    top = encoder.top_params(Decoder(shape.trunk), trunk_params)
    top = jax.tree.map(lambda x: x.astype(shape.dtype), top)
    count = shape.pool.num_agents + 1
    memory = memory_lib.empty(shape.config.memory_slots, shape.config.d, shape.dtype)
    statistics = calibration_lib.identity(count, shape.config.d, shape.dtype)
    pooled = encoder.encode(shape.trunk, top, batch.trunk)
    network = Network(shape).init(key, pooled, batch.records, memory, statistics, rollout)
    return Params(encoder=top, network=network)


@functools.partial(jax.jit, static_argnames="shape")
def message_moments(shape: Shape, params: Params, records: Records, shift):
    """Sums of the raw messages of all that exist, about ``shift`` [N, d]."""
    raw = Network(shape).apply(params.network, records, method="raw_messages")
    return calibration_lib.moments(raw, records.available & records.valid[:, None], shift)

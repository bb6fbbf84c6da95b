"""A pool whose members are known by heart, and batches of made-up questions about it."""

import jax
import numpy as np

from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.encoder import pack_rows, pack_trunk
from gradejax.systems.grade.config import GradeConfig
from gradejax.systems.grade.network import Shape, init_params
from gradejax.systems.grade.policy import Rollout
from gradejax.types import NO_ANSWER, Batch, Pool, Records

TRUNK = DecoderConfig(
    family="qwen2", vocab_size=53, width=16, num_layers=3, num_heads=2, num_kv_heads=1,
    head_dim=8, mlp_width=24, max_positions=64, qkv_bias=True, tied=True,
)  # fmt: skip

POOL = Pool(
    agents=("A1", "A2", "A3", "B1", "B2", "B3"),
    managers=("left", "right"),
    manager_of=(0, 0, 0, 1, 1, 1),
    params=(1000, 1000, 1000, 1200, 1200, 900, 100),
    widths=(7, 7, 7, 5, 5, 11, 16),
    candidate_width=16,
    trunk_width=16,
)


def trunk_params(seed=0):
    return Decoder(TRUNK).init(jax.random.key(seed), np.zeros((1, 2), np.int32))


def batch(q=12, seed=0, *, missing=0.0, dtype=np.float32, ids=None, families=3, skill=0.9,
          rows=None, row_length=24, choices=False) -> Batch:  # fmt: skip
    """Questions of three families; agents A1-A3, B1-B2 and B3 master one family each.

    The family shows in the encoder's state and in nothing else, so the gates can learn it.
    """
    rng = np.random.default_rng(seed)
    n = POOL.num_agents + 1
    family = rng.integers(0, families, q)
    master = np.array([0, 0, 0, 1, 1, 2, -1])
    answers = np.full((q, n), NO_ANSWER, np.int32)
    gold = np.full((q,), NO_ANSWER, np.int32)
    available = rng.random((q, n)) >= missing
    for i in range(q):
        texts, right = {}, rng.random(n) < np.where(master == family[i], skill, 0.05)
        for a in range(n):
            if not available[i, a] or rng.random() < 0.05:
                continue
            text = "gold" if right[a] else f"wrong {rng.integers(0, 40)}"
            answers[i, a] = texts.setdefault(text, len(texts))
        if choices:
            gold[i] = rng.integers(0, 4)
            answers[i] = np.where(answers[i] >= 0, np.where(right, gold[i],
                                  rng.integers(0, 4, n)), NO_ANSWER)  # fmt: skip
        else:
            gold[i] = texts.get("gold", NO_ANSWER)
    given = answers.max(1) + 1
    mask = np.arange(n)[None] < (4 if choices else given[:, None])
    lengths = rng.integers(3, 9, q)
    style = rng.normal(size=(families, TRUNK.width)) * 0 + np.eye(families, TRUNK.width) * 3
    states = [
        (style[f] + 0.3 * rng.normal(size=(t, TRUNK.width))).astype(np.float32)
        for f, t in zip(family, lengths, strict=True)
    ]
    need = len(pack_rows(lengths, row_length))
    trunk = pack_trunk(states, rows or need, row_length)
    records = Records(
        ids=np.arange(q, dtype=np.int32) if ids is None else np.asarray(ids, np.int32),
        valid=np.ones(q, bool),
        family=family.astype(np.int32),
        features=tuple(rng.normal(size=(q, w)).astype(np.float32) for w in POOL.widths),
        available=available,
        answers=answers,
        candidates=rng.normal(size=(q, n, POOL.candidate_width)).astype(np.float32),
        candidate_mask=np.broadcast_to(mask, (q, n)).copy(),
        choices=np.full(q, choices),
        gold=gold,
        tokens=rng.integers(10, 90, (q, n)).astype(np.int32),
    )
    out = Batch(records=records, trunk=trunk)
    return jax.tree.map(
        lambda x: x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x, out
    )


def shape(dtype=np.float32, **settings) -> Shape:
    """Small, fast-learning settings over the fake pool."""
    base = {"d": 16, "group_size": 8, "memory_slots": 32, "learning_rate": 3e-3, "std_floor": 0.5}
    return Shape(GradeConfig(**(base | settings)), POOL, TRUNK, dtype)


def any_rollout(q, config: GradeConfig) -> Rollout:
    """A rollout of the right shapes, for initialisation."""
    a, g = POOL.num_agents, config.group_size
    z = lambda *s: np.zeros(s, bool)  # noqa: E731
    return Rollout(
        depth=np.zeros((q, g), np.int32), manager=np.full((q, g), -1, np.int32),
        asked=z(q, g, a), order=None, edges=z(q, g, a, a), relaxed=None,
        members=z(q, g, a + 1), kept=z(q, g, a + 1),
    )  # fmt: skip


def params(shape: Shape, batch: Batch, seed=0):
    q = batch.records.valid.shape[0]
    return init_params(shape, jax.random.key(seed), trunk_params(), batch,
                       any_rollout(q, shape.config))  # fmt: skip

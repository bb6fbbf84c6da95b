"""Supervised routers: what a practitioner would try first instead of GRADE.

Both read the *frozen* query vector of a question, learn from the training questions which agents
get such questions right, and ask the one agent with the highest predicted P(right), among those
available. Settings are chosen by cross-validation on the training questions only.

Letters: N training questions, Q test questions, E query width, A+1 agents (M0 last, an arm like
others).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit

from gradejax.evaluation.baselines import ask_one, hashed_uniform
from gradejax.evaluation.lbfgs import minimize
from gradejax.evaluation.outcome import SystemOutcome, agent_available, agent_correct, check_pool
from gradejax.types import Pool, Records

# Strongest first: each fit starts from the stronger one.
L2_GRID = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
K_GRID = (1, 3, 5, 10, 20, 50, 100)


class Routed(NamedTuple):
    outcome: SystemOutcome
    chosen: float  # the L2 or k that cross-validation picked
    predicted: np.ndarray  # [Q, A+1] P(right); −inf for an agent without any training record


class _Data(NamedTuple):
    x: np.ndarray  # [N, E] standardised
    right: np.ndarray  # [N, A+1] float
    weight: np.ndarray  # [N, A+1] float, 1 where the record exists
    ids: np.ndarray  # [N]


def router_logistic(
    train: Records,
    train_query,
    test: Records,
    test_query,
    pool: Pool,
    *,
    l2_grid: tuple[float, ...] = L2_GRID,
    folds: int = 5,
    seed: int = 0,
) -> Routed:
    """One-vs-rest logistic regression of each agent's correctness on the query vector.

    Minimises mean log-loss + l2/2 ‖W‖² per agent (bias free; scikit-learn's C is 1/(N · l2)). l2 is
    the value whose routed accuracy over held-out folds is highest, ties to the lower held-out
    log-loss.

    Args:
        train_query, test_query: [N, E], [Q, E] pooled frozen query vectors, row for row with the
        records.
    """
    data, x_test = _prepare(train, train_query, test, test_query, pool)
    grid = sorted(l2_grid, reverse=True)
    fold = _folds(data.ids, folds, seed)
    score, loss = np.zeros(len(grid)), np.zeros(len(grid))
    for held in np.unique(fold) if len(np.unique(fold)) > 1 else ():
        inside, outside = fold != held, fold == held
        known = data.x[inside], data.right[inside], data.weight[inside]
        theta = None
        for i, l2 in enumerate(grid):
            theta = fit_logistic(*known, l2, theta, 1e-4)
            p = _seen(expit(data.x[outside] @ theta[:-1] + theta[-1]), data.weight[inside])
            score[i] += _routed_right(p, data.right[outside], data.weight[outside])
            loss[i] += _log_loss(p, data.right[outside], data.weight[outside])
    best = int(np.lexsort((loss, -score))[0])
    theta = fit_logistic(data.x, data.right, data.weight, grid[best])
    predicted = _seen(expit(x_test @ theta[:-1] + theta[-1]), data.weight)
    return Routed(_route(test, pool, predicted), grid[best], predicted)


def router_knn(
    train: Records,
    train_query,
    test: Records,
    test_query,
    pool: Pool,
    *,
    k_grid: tuple[int, ...] = K_GRID,
    prior: float = 1.0,
) -> Routed:
    """Mean correctness of each agent on the k nearest training questions (Euclidean).

    k has the highest leave-one-out routed accuracy on the training questions, ties to the larger k.
    `prior` pseudo-neighbours at the agent's training accuracy break the many ties of small k and
    stand in where no neighbour has a record of the agent; 0 is the plain mean.
    """
    data, x_test = _prepare(train, train_query, test, test_query, pool)
    n = len(data.x)
    grid = sorted({min(k, max(n - 1, 1)) for k in k_grid})
    best = grid[-1]
    if n > 1:
        own = knn_predict(data.x, data.right, data.weight, data.x, grid, prior, leave_one_out=True)
        scores = [_routed_right(p, data.right, data.weight) for p in own]
        best = max(zip(scores, grid, strict=True))[1]
    (predicted,) = knn_predict(data.x, data.right, data.weight, x_test, [best], prior)
    return Routed(_route(test, pool, predicted), best, predicted)


def fit_logistic(x, right, weight, l2: float, start=None, tolerance: float = 1e-5) -> np.ndarray:
    """All agents at once by L-BFGS (separable, convex): theta [E + 1, A+1], bias last.

    Args: x [N, E]; right, weight [N, A+1], pairs of weight 0 are left out of that agent's mean.
    """
    n_agents = right.shape[1]
    count = np.maximum(weight.sum(0), 1.0)
    share = weight / count
    if start is None:
        start = np.zeros((x.shape[1] + 1, n_agents))
        start[-1] = logit(((right * weight).sum(0) + 0.5) / (count + 1.0))

    blocks = _blocks(x, n_agents)

    def objective(flat):
        theta = flat.reshape(start.shape)
        z = (blocks @ theta[:-1]).reshape(-1, n_agents)[: len(x)] + theta[-1]
        value = (share * (np.logaddexp(0.0, z) - right * z)).sum() + 0.5 * l2 * (
            theta[:-1] ** 2
        ).sum()
        slope = share * (expit(z) - right)
        split = np.zeros((blocks.shape[0] * blocks.shape[1], n_agents))
        split[: len(x)] = slope
        split = split.reshape(*blocks.shape[:2], n_agents)
        weights_slope = (blocks.transpose(0, 2, 1) @ split).sum(0) + l2 * theta[:-1]
        gradient = np.concatenate([weights_slope, slope.sum(0, keepdims=True)])
        return value, gradient.ravel()

    return minimize(objective, start.ravel(), tolerance=tolerance).reshape(start.shape)


def _blocks(x, n_agents: int) -> np.ndarray:
    """x [N, E] as [blocks, rows, E], zero rows at the end.

    Each block's product is small enough for OpenBLAS to stay on one thread: hundreds of thin
    products on all cores thrash when another process has some of them (measured: 20 times slower).
    """
    rows = max(1, min(len(x), 200_000 // (x.shape[1] * n_agents)))
    padded = np.zeros((-(-len(x) // rows) * rows, x.shape[1]))
    padded[: len(x)] = x
    return padded.reshape(-1, rows, x.shape[1])


def knn_predict(
    x, right, weight, x_query, ks, prior: float, *, leave_one_out: bool = False
) -> list[np.ndarray]:
    """P(right) [Q, A+1] for each k of the rising list `ks`, from training x [N, E], right, weight.

    leave_one_out: x_query is x, and no question is its own neighbour.
    """
    base = (right * weight).sum(0) / np.maximum(weight.sum(0), 1.0)
    unseen = weight.sum(0) == 0
    out = [np.empty((len(x_query), right.shape[1])) for _ in ks]
    square = (x**2).sum(1)
    step = max(1, 4_000_000 // max(len(x), ks[-1] * right.shape[1]))
    for start in range(0, len(x_query), step):
        rows = slice(start, min(start + step, len(x_query)))
        # Up to the query's own norm, which does not change the order.
        distance = square - 2.0 * (x_query[rows] @ x.T)
        if leave_one_out:
            distance[np.arange(rows.stop - start), np.arange(start, rows.stop)] = np.inf
        near = np.argpartition(distance, ks[-1] - 1, axis=1)[:, : ks[-1]]
        near = np.take_along_axis(
            near, np.argsort(np.take_along_axis(distance, near, 1), axis=1), 1
        )
        seen = np.cumsum(weight[near], 1)
        hits = np.cumsum((right * weight)[near], 1)
        for p, k in zip(out, ks, strict=True):
            total = seen[:, k - 1] + prior
            mean = (hits[:, k - 1] + prior * base) / np.where(total > 0, total, 1.0)
            p[rows] = np.where(unseen, -np.inf, np.where(total > 0, mean, base))
    return out


def _prepare(train, train_query, test, test_query, pool) -> tuple[_Data, np.ndarray]:
    """Valid training rows, standardised by their own moments; test vectors in the same scale."""
    check_pool(train, pool)
    check_pool(test, pool)
    train_query, test_query = np.asarray(train_query, float), np.asarray(test_query, float)
    rows, test_rows = len(np.asarray(train.ids)), len(np.asarray(test.ids))
    good = train_query.ndim == test_query.ndim == 2 and train_query.shape[1] == test_query.shape[1]
    if not good or len(train_query) != rows or len(test_query) != test_rows:
        raise ValueError(
            f"query vectors: expected [{rows}, E] for training and [{test_rows}, E] for test, "
            f"got {train_query.shape} and {test_query.shape}"
        )
    valid = np.asarray(train.valid, bool)
    if not valid.any():
        raise ValueError(
            "a supervised router needs training questions: no row of the training records is valid"
        )
    both = np.intersect1d(
        np.asarray(train.ids)[valid], np.asarray(test.ids)[np.asarray(test.valid, bool)]
    )
    if both.size:
        raise ValueError(
            f"question id {both[0]} is both a training and a test question ({both.size} such)"
        )
    x = train_query[valid]
    mean, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 1e-8, scale, 1.0)
    data = _Data(
        (x - mean) / scale,
        agent_correct(train)[valid].astype(float),
        agent_available(train)[valid].astype(float),
        np.asarray(train.ids)[valid],
    )
    in_use = np.asarray(test.valid, bool)[:, None]
    return data, (np.where(in_use, test_query, mean) - mean) / scale  # padding may hold anything


def _folds(ids, folds: int, seed: int) -> np.ndarray:
    """Balanced fold numbers [N] by hashed id: the order of rows does not matter."""
    rank = np.argsort(np.argsort(hashed_uniform(ids, seed), kind="stable"))
    return rank % max(1, min(folds, len(rank)))


def _seen(predicted, weight):
    """An agent with no training record is never asked: nothing was learned about it."""
    return np.where(weight.sum(0) > 0, predicted, -np.inf)


def _pick(predicted, available) -> np.ndarray:
    """[Q] highest predicted among available, ties to the lowest; unseen before missing."""
    return np.argmax(np.where(available, np.maximum(predicted, -1.0), -2.0), 1)


def _routed_right(predicted, right, weight) -> float:
    column = _pick(predicted, weight > 0)[:, None]
    return float((np.take_along_axis(right * weight, column, 1)).sum())


def _log_loss(predicted, right, weight) -> float:
    p = np.clip(predicted, 1e-12, 1 - 1e-12)
    return float(-(weight * (right * np.log(p) + (1 - right) * np.log1p(-p))).sum())


def _route(test: Records, pool: Pool, predicted) -> SystemOutcome:
    return ask_one(test, pool, _pick(predicted, agent_available(test)))

"""What GRADE is measured against, each computed from the same records as GRADE.

Every function returns a `SystemOutcome`. Unless asked otherwise "agents" are the A experts; the
orchestrator M0 takes part, and is paid for, only where it is asked. Depth is 1 where an expert was
asked, 0 where only M0 was. Supervised routers are in `routers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradejax.evaluation.outcome import (
    SystemOutcome,
    agent_available,
    agent_correct,
    agent_names,
    check_pool,
    outcome_from_decisions,
)
from gradejax.types import NO_ANSWER, Pool, Records

MIN_COVERAGE = (
    0.5  # below it a hindsight choice passes an agent over: one lucky answer is not skill
)


def columns_of(pool: Pool, names: Sequence[str]) -> list[int]:
    """Columns of the named agents in pool order; ValueError for unknown names or none."""
    known = agent_names(pool)
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) != len(names):
        raise ValueError(f"agents: expected distinct names among {list(known)}, got {list(names)}")
    return sorted(known.index(name) for name in names)


def ask_one(records: Records, pool: Pool, column: np.ndarray) -> SystemOutcome:
    """Ask one agent per question, `column` [Q] int in 0..A, and say what it says."""
    n_agents = check_pool(records, pool)
    column = np.asarray(column)
    answers = np.asarray(records.answers)
    asked = column[:, None] == np.arange(n_agents + 1)
    answer = np.take_along_axis(answers, column[:, None], 1)[:, 0]
    return outcome_from_decisions(
        records, pool, answer, asked, column < n_agents, orchestrator_always=False
    )


def single(records: Records, pool: Pool, agent: str) -> SystemOutcome:
    """One named agent, M0 included, on everything; not covered where its call failed."""
    (column,) = columns_of(pool, [agent])
    return ask_one(records, pool, np.full(len(np.asarray(records.ids)), column))


def vote(records: Records, pool: Pool, agents: Sequence[str] | None = None) -> SystemOutcome:
    """Plurality of the agents' answers; ties go to the answer of the lowest agent in pool order.

    Missing agents and replies without an answer do not vote. If nobody votes but somebody replied,
    the outcome is "no answer", that is not right; if nobody replied, the question is not covered.

    Args: agents: names; default the A experts, without M0.
    """
    n_agents = check_pool(records, pool)
    columns = list(range(n_agents)) if agents is None else columns_of(pool, agents)
    answers = np.asarray(records.answers)[:, columns]
    votes = (answers != NO_ANSWER) & agent_available(records)[:, columns]
    same = (answers[:, :, None] == answers[:, None, :]) & votes[:, :, None] & votes[:, None, :]
    # argmax takes the first of equals, and columns are in pool order: the tie rule. (An argmax over
    # candidates would give ties to the first *option* of a multiple choice question.)
    winner = np.argmax(same.sum(2), 1)
    answer = np.where(
        votes.any(1), np.take_along_axis(answers, winner[:, None], 1)[:, 0], NO_ANSWER
    )
    asked = np.zeros(np.shape(records.answers), bool)
    asked[:, columns] = True
    depth = (agent_available(records) & asked)[:, :n_agents].any(1)
    return outcome_from_decisions(records, pool, answer, asked, depth, orchestrator_always=False)


def self_consistency(
    records: Records, pool: Pool, group: Sequence[str], budget: int | None = None
) -> SystemOutcome:
    """Self-consistency (Wang et al. 2203.11171): the vote of agents that are samples of one model.

    Args:
        group: names of the agents that share the model.
        budget: calls allowed; the first `budget` of the group in pool order. Equal budget means:
            give the number of calls that the system compared with makes. Default: the whole group.
    """
    columns = columns_of(pool, group)
    if budget is not None and not 1 <= budget <= len(columns):
        raise ValueError(
            f"budget: expected 1 to {len(columns)} calls for group {list(group)}, got {budget}"
        )
    return vote(records, pool, [agent_names(pool)[c] for c in columns[:budget]])


def random_expected(records: Records, pool: Pool) -> SystemOutcome:
    """One expert drawn uniformly from those available: the exact expectation of everything."""
    n_agents = check_pool(records, pool)
    available = agent_available(records)[:, :n_agents]
    covered = available.any(1)
    share = available / np.maximum(available.sum(1, keepdims=True), 1)
    base = ask_one(records, pool, np.zeros(len(covered), int))
    return replace(
        base,
        covered=covered,
        correct=(share * agent_correct(records)[:, :n_agents]).sum(1),
        agents=covered.astype(float),
        depth=covered.astype(float),
        tokens=(share * np.asarray(records.tokens)[:, :n_agents]).sum(1),
        active_params=share @ np.asarray(pool.params[:n_agents], float),
    )


def random_sampled(records: Records, pool: Pool, seed: int) -> SystemOutcome:
    """One draw of `random_expected`. The draw depends on (seed, question id), not on row order."""
    n_agents = check_pool(records, pool)
    available = agent_available(records)[:, :n_agents]
    # Which of the available experts, counted from 0.
    rank = (hashed_uniform(records.ids, seed) * available.sum(1)).astype(int)
    column = np.argmax(np.cumsum(available, 1) > rank[:, None], 1)
    return ask_one(records, pool, column)


def best_column(records: Records, pool: Pool, rows: np.ndarray | None = None) -> int:
    """The agent (M0 included) most often right where it replied, on `rows` [Q] bool.

    Ties go to the lowest. Hindsight: it looks at the gold answers of the very questions it is then
    scored on. Agents with records for less than half of the questions are considered only when all
    are such.
    """
    check_pool(records, pool)
    rows = (
        np.asarray(records.valid, bool) if rows is None else rows & np.asarray(records.valid, bool)
    )
    replied = agent_available(records)[rows].sum(0)
    accuracy = agent_correct(records)[rows].sum(0) / np.maximum(replied, 1)
    usual = replied >= MIN_COVERAGE * rows.sum()
    return int(np.argmax(np.where(usual if usual.any() else True, accuracy, -1.0)))


def best_single(records: Records, pool: Pool) -> SystemOutcome:
    """The best single agent, chosen with hindsight (see `best_column`)."""
    return ask_one(records, pool, np.full(len(np.asarray(records.ids)), best_column(records, pool)))


def family_best_columns(records: Records, pool: Pool) -> dict[int, int]:
    """{family: best column}, chosen with hindsight on the evaluated questions."""
    family, valid = np.asarray(records.family), np.asarray(records.valid, bool)
    return {int(f): best_column(records, pool, family == f) for f in np.unique(family[valid])}


def family_best(records: Records, pool: Pool) -> SystemOutcome:
    """Per question the best single agent of its family, chosen with hindsight on these questions.

    It knows each question's family and which agent turns out best there: no deployable system does.
    """
    columns = family_best_columns(records, pool)
    return ask_one(
        records, pool, np.array([columns.get(int(f), 0) for f in np.asarray(records.family)], int)
    )


def oracle(records: Records, pool: Pool) -> SystemOutcome:
    """Right wherever any agent (M0 included) is: the ceiling of choosing *one* agent per question.

    It asks the right agent with the fewest parameters; where none is right, the smallest that
    replied.
    """
    check_pool(records, pool)
    params = np.asarray(pool.params, float)
    available, right = agent_available(records), agent_correct(records)
    # Two-level order in one key: right agents first, then by parameters; ties to the lowest agent.
    key = params / params.max() + np.where(right, 0.0, 2.0) + np.where(available, 0.0, 4.0)
    return ask_one(records, pool, np.argmin(key, 1))


def hashed_uniform(ids: np.ndarray, seed: int) -> np.ndarray:
    """Uniform numbers in [0, 1), one per id, a pure function of (seed, id): float64 [Q].

    splitmix64 (Steele et al. 2014): neither the order of rows nor padding changes a question's
    number.
    """
    with np.errstate(over="ignore"):  # wrapping is the algorithm
        x = np.asarray(ids).astype(np.int64).astype(np.uint64)
        x = x + np.uint64(0x9E3779B97F4A7C15) * np.uint64(2 * (seed % 2**31) + 1)
        # Two rounds: seeds differ by an additive constant, and one round keeps a trace of it.
        for _ in range(2):
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(float) / 2.0**53

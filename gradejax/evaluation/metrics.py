"""Counts that explain an accuracy: by family, by kind of outcome, by gate; and who collapsed.

Everything that will be averaged again is a (sum, count) pair, divided once at the end, so that
batches or devices of unequal size do not bias it. Padding and missing rows have count 0.

Letters: Q questions, F families, A+1 agents (M0 last), D depths, N choices of a gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gradejax.evaluation.outcome import SystemOutcome, agent_available, is_right
from gradejax.types import NO_ANSWER, Records

COLLAPSED_ENTROPY = 0.01  # share of the largest possible entropy below which a gate has collapsed
COLLAPSED_USE = 0.001  # an agent asked on a smaller share of questions is never asked in effect


class SumCount(NamedTuple):
    """A mean before its division; sums of such pairs are again such pairs."""

    sum: np.ndarray
    count: np.ndarray

    def mean(self) -> np.ndarray:
        """sum / count; NaN where nothing was counted."""
        return np.where(self.count > 0, self.sum / np.where(self.count > 0, self.count, 1), np.nan)


def accuracy(outcome: SystemOutcome) -> SumCount:
    """(right, covered) over all questions, float scalars."""
    return SumCount(outcome.correct[outcome.covered].sum(), np.float64(outcome.covered.sum()))


def accuracy_by_family(outcome: SystemOutcome, n_families: int) -> SumCount:
    """(right, covered) per family, [F] each; ValueError if a family is not in 0..F−1."""
    family = outcome.family[outcome.valid]
    if family.size and not (family.min() >= 0 and family.max() < n_families):
        raise ValueError(
            f"family: expected 0 to {n_families - 1}, got {family.min()} to {family.max()}"
        )
    rows = outcome.covered
    right = np.bincount(outcome.family[rows], weights=outcome.correct[rows], minlength=n_families)
    return SumCount(right, np.bincount(outcome.family[rows], minlength=n_families).astype(float))


def coverage(outcome: SystemOutcome) -> SumCount:
    """(covered, valid): the share of questions on which anything is known of the system."""
    return SumCount(np.float64(outcome.covered.sum()), np.float64(outcome.valid.sum()))


def outcome_counts(records: Records) -> dict[str, np.ndarray]:
    """How each agent's calls ended: {"right", "wrong", "no_answer", "missing"}, [A+1] int each.

    The four are disjoint and sum to the number of valid questions for every agent.
    """
    valid, available = np.asarray(records.valid, bool)[:, None], agent_available(records)
    answered = available & (np.asarray(records.answers) != NO_ANSWER)
    right = answered & is_right(records, records.answers)
    kinds = {
        "right": right,
        "wrong": answered & ~right,
        "no_answer": available & ~answered,
        "missing": valid & ~available,
    }
    return {name: rows.sum(0) for name, rows in kinds.items()}


def oracle_gap(ceiling: SystemOutcome, system: SystemOutcome) -> SumCount:
    """(Σ ceiling − system, questions) over what both cover; rows must be the same questions."""
    if not np.array_equal(ceiling.ids[ceiling.valid], system.ids[system.valid]):
        raise ValueError(
            "oracle_gap: the two outcomes are not of the same questions in the same order"
        )
    both = ceiling.covered & system.covered
    return SumCount((ceiling.correct - system.correct)[both].sum(), np.float64(both.sum()))


def usage(choice: np.ndarray, n_choices: int, rows: np.ndarray) -> SumCount:
    """How often each option was taken: `choice` [Q] int over `rows` [Q] bool; ([N], [N])."""
    taken = np.bincount(np.asarray(choice)[rows], minlength=n_choices).astype(float)
    if taken.size != n_choices:
        raise ValueError(f"choice: expected 0 to {n_choices - 1}, got {taken.size - 1}")
    return SumCount(taken, np.full(n_choices, float(np.sum(rows))))


def member_usage(members: np.ndarray, rows: np.ndarray) -> SumCount:
    """How often each agent is in a set: `members` [Q, A] bool over `rows` [Q] bool."""
    members = np.asarray(members, bool)
    return SumCount(
        members[rows].sum(0).astype(float), np.full(members.shape[1], float(np.sum(rows)))
    )


def categorical_entropy(probabilities: np.ndarray) -> np.ndarray:
    """−Σ p log p over the last axis, nats, in [0, log N]; 0 log 0 = 0."""
    p = np.asarray(probabilities, float)
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def bernoulli_entropy(probabilities: np.ndarray) -> np.ndarray:
    """Entropy of each on/off decision, nats, in [0, log 2]; same shape."""
    p = np.asarray(probabilities, float)
    return categorical_entropy(np.stack([p, 1.0 - p], -1))


def detect_collapse(
    *,
    agent_use: Mapping[str, float] | None = None,
    depth_use: Sequence[float] | None = None,
    entropies: Mapping[str, tuple[float, float]] | None = None,
) -> list[str]:
    """One sentence per sign of a collapsed gate; empty when there is none.

    Args:
        agent_use: {agent: share of questions on which it was asked}.
        depth_use: [D] share of questions at each depth.
        entropies: {gate: (mean entropy, largest possible entropy)} in the same unit.
    """
    found = []
    for agent, share in (agent_use or {}).items():
        if share < COLLAPSED_USE:
            found.append(f"agent {agent} is never asked ({share:.2%} of questions)")
    if depth_use is not None and len(depth_use) > 1 and sum(depth_use) > 0:
        deepest = int(np.argmax(depth_use))
        if depth_use[deepest] >= (1 - COLLAPSED_USE) * sum(depth_use):
            found.append(f"depth {deepest} is the only one used")
    for gate, (entropy, largest) in (entropies or {}).items():
        if largest > 0 and entropy < COLLAPSED_ENTROPY * largest:
            found.append(
                f"gate {gate} has collapsed: entropy {entropy:.4f} of at most {largest:.4f}"
            )
    return found

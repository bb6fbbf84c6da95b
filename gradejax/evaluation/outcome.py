"""What one system did on every question: the currency of the evaluation.

Letters: Q questions, A agents (experts), column A of A+1 is the orchestrator M0.

Four things can happen to a call, and they stay four: right, wrong, *no answer* (the model replied
and gave none: counts as not right) and *missing* (the call failed: it says nothing about the model,
so the question leaves the accuracy and shows in `coverage` instead).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from gradejax.types import NO_ANSWER, Pool, Records

ORCHESTRATOR = "M0"


@dataclass(frozen=True)
class SystemOutcome:
    """One system on Q questions, row for row with the records it was computed from (host, numpy).

    Rows with `valid` False are padding. Rows with `covered` False have no outcome because every
    call failed; both carry zeros elsewhere. `correct` and the costs are floats because a system may
    be an expectation (random assignment).
    """

    ids: np.ndarray  # [Q] int, unique among valid rows: pairing is by id, never by position
    family: np.ndarray  # [Q] int
    valid: np.ndarray  # [Q] bool
    covered: np.ndarray  # [Q] bool, subset of valid
    correct: np.ndarray  # [Q] float in [0, 1]
    agents: np.ndarray  # [Q] float, agents whose answer was asked for (M0 where its was)
    depth: np.ndarray  # [Q] float, 0 = M0 alone, 1 = experts, 2 = experts that read each other
    tokens: np.ndarray  # [Q] float, prompt + reply tokens of the calls made
    active_params: np.ndarray  # [Q] float, of the calls made; shared weights count each time

    def __post_init__(self) -> None:
        for field in fields(self):
            got = np.shape(getattr(self, field.name))
            if got != np.shape(self.ids) or len(got) != 1:
                raise ValueError(
                    f"outcome field {field.name!r}: expected shape {np.shape(self.ids)}, got {got}"
                )
        if np.any(self.covered & ~self.valid):
            raise ValueError("outcome: a padding row (valid False) is marked covered")


def check_pool(records: Records, pool: Pool) -> int:
    """A, after checking that the pool describes the records' columns (else ValueError)."""
    columns = np.shape(records.answers)[1]
    if len(pool.params) != len(pool.agents) + 1 or columns != len(pool.params):
        raise ValueError(
            f"records have {columns} agent columns, the pool has {len(pool.agents)} agents and "
            f"{len(pool.params)} parameter counts; expected agents + 1 (M0 last) of both"
        )
    return len(pool.agents)


def agent_names(pool: Pool) -> tuple[str, ...]:
    """Names of the A+1 columns, the orchestrator last."""
    return (*pool.agents, ORCHESTRATOR)


def agent_available(records: Records) -> np.ndarray:
    """[Q, A+1] bool: the record exists and the row is not padding."""
    return np.asarray(records.available, bool) & np.asarray(records.valid, bool)[:, None]


def is_right(records: Records, answer: np.ndarray) -> np.ndarray:
    """Whether candidate `answer` [Q] or [Q, n] int is right; same shape, bool.

    Both "no answer" and "gold is no candidate" are -1, so equality alone would call silence right.
    """
    answer, gold = np.asarray(answer), np.asarray(records.gold)
    if gold.dtype != bool:
        gold = gold.reshape((-1,) + (1,) * (answer.ndim - 1))
        return (answer == gold) & (answer != NO_ANSWER)
    given = np.maximum(answer, 0).reshape(len(answer), -1)
    right = np.take_along_axis(gold, given, axis=1).reshape(answer.shape)
    return right & (answer != NO_ANSWER)


def agent_correct(records: Records) -> np.ndarray:
    """[Q, A+1] bool: the agent's record exists and its answer is the gold candidate."""
    return is_right(records, records.answers) & agent_available(records)


def outcome_from_decisions(
    records: Records,
    pool: Pool,
    answer: np.ndarray,
    asked: np.ndarray,
    depth: np.ndarray,
    *,
    orchestrator_always: bool,
) -> SystemOutcome:
    """The outcome of a system that asked `asked` and said `answer`.

    Args:
        answer: [Q] int, candidate index of the system's answer or NO_ANSWER.
        asked: [Q, A+1] bool, whose *answer* was asked for (M0's column for depth 0).
        depth: [Q] int.
        orchestrator_always: count M0's parameters and tokens on every question. True for GRADE,
            whose cost always includes M0 (design section 5); False for a baseline that does not run
            it.

    Calls that failed (not available) cost nothing here and do not count as asked: nothing is known
    of them. A question all of whose calls failed is not covered.
    """
    check_pool(records, pool)
    answer, asked, depth = np.asarray(answer), np.asarray(asked, bool), np.asarray(depth)
    n_questions, n_candidates = np.shape(records.candidate_mask)
    if asked.shape != np.shape(records.answers) or answer.shape != (n_questions,):
        raise ValueError(
            f"expected answer {(n_questions,)} and asked {np.shape(records.answers)}, "
            f"got {answer.shape} and {asked.shape}"
        )
    valid, available = np.asarray(records.valid, bool), agent_available(records)
    bad = valid & ((answer < NO_ANSWER) | (answer >= n_candidates))
    if bad.any():
        raise ValueError(
            f"answer {answer[bad][0]} is not a candidate index; expected -1 to {n_candidates - 1}"
        )
    reached = asked & available
    covered = reached.any(1)
    paid = reached.copy()
    if orchestrator_always:
        paid[:, -1] |= available[:, -1]
    paid &= covered[:, None]
    return SystemOutcome(
        ids=np.asarray(records.ids),
        family=np.asarray(records.family),
        valid=valid,
        covered=covered,
        correct=(is_right(records, answer) & covered).astype(float),
        agents=reached.sum(1).astype(float),
        depth=np.where(covered, depth, 0).astype(float),
        tokens=(np.asarray(records.tokens, float) * paid).sum(1),
        active_params=(paid * np.asarray(pool.params, float)).sum(1),
    )

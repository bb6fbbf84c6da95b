"""From experts' replies to arrays: what a pool said of a set of questions, ready to be batched.

Everything that is text ends here. A row is a question; its global row id is its place in the run
(training questions first), so keys, memory slots and records of different splits never collide.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from gradejax.experts.replies import Missing, Reply
from gradejax.models.encoder import pack_rows, pack_trunk
from gradejax.tasks.base import Example, Outcome, Task
from gradejax.types import NO_ANSWER, Batch, Pool, Records, Trunk


class FailedCall(NamedTuple):
    """A call without a reply: it is missing, in no statistic and in no loss, and is asked again by
    the next run. ``state`` and ``message`` as in ``experts.replies.Missing``."""

    seat: str
    question: str
    state: str
    message: str


@dataclasses.dataclass(frozen=True)
class QuestionSet:
    """Questions with what every member of a pool said, on the host.

    Attributes:
      examples: the questions.
      records: NumPy, row for row; ``ids`` are the run's global row ids.
      trunk: the encoder's cached state of each question, [T_i, E].
      queries: [Q, E] float32, frozen query vectors (the router baselines read them).
      texts: for each question, its candidates' texts in column order.
      replies: for each seat (M0 last), the reply texts, None where the call is missing.
      money: [Q, A+1] float64, what each call cost in the currency of the prices.
      failed: the calls that are missing.
    """

    examples: tuple[Example, ...]
    records: Records
    trunk: tuple[np.ndarray, ...]
    queries: np.ndarray
    texts: tuple[tuple[str, ...], ...]
    replies: tuple[tuple[str | None, ...], ...]
    money: np.ndarray
    failed: tuple[FailedCall, ...]

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def longest(self) -> int:
        """Tokens of the longest question."""
        return max(len(t) for t in self.trunk)

    def rows_needed(self, rows: Sequence[int], row_length: int) -> int:
        """Packed rows that a batch of these questions takes."""
        return len(pack_rows([len(self.trunk[i]) for i in rows], row_length))

    def batch(self, rows: Sequence[int], *, size: int, packed_rows: int, row_length: int) -> Batch:
        """A batch of ``size`` rows, filled up with invalid ones.

        Args:
          rows: places of the questions in this set.
          size: Q.
          packed_rows: R of the packed encoder states.
          row_length: L.
        """
        rows = np.asarray(rows, np.int64)
        extra = size - len(rows)
        if extra < 0:
            raise ValueError(f"{len(rows)} questions do not fit a batch of {size}")
        states = [self.trunk[i] for i in rows]
        width = self.trunk[0].shape[-1]
        states += [np.zeros((0, width), np.float32)] * extra
        return Batch(
            records=pad_records(self.records.take(rows), extra),
            trunk=pack_trunk(states, packed_rows, row_length),
        )


def pad_records(records: Records, extra: int) -> Records:
    """Records with ``extra`` invalid rows at the end: nobody available, no answer."""
    if not extra:
        return records

    def grow(x):
        return np.concatenate([x, np.zeros((extra, *x.shape[1:]), x.dtype)])

    padded = jax.tree.map(grow, records)
    padded.answers[-extra:] = NO_ANSWER
    if padded.gold.ndim == 1:
        padded.gold[-extra:] = NO_ANSWER
    padded.ids[-extra:] = NO_ANSWER  # no question has it
    return padded


def split_batch(batch: Batch, devices: int, rows: int, row_length: int) -> Batch:
    """Cut a batch into equal shares with a leading device axis, each with its own packed rows.

    Args:
      batch: NumPy; its Q is a multiple of ``devices`` (pad it with invalid rows first).
      devices: D.
      rows: packed rows of each share.
      row_length: L.
    """
    q = batch.records.num_questions
    if q % devices:
        raise ValueError(f"{q} rows cannot be cut into {devices} equal shares")
    states = unpack_trunk(batch.trunk)
    share = q // devices
    trunks = [
        pack_trunk(states[d * share : (d + 1) * share], rows, row_length) for d in range(devices)
    ]
    return Batch(
        records=jax.tree.map(lambda x: x.reshape(devices, share, *x.shape[1:]), batch.records),
        trunk=jax.tree.map(lambda *x: np.stack(x), *trunks),
    )


def unpack_trunk(trunk: Trunk) -> list[np.ndarray]:
    """The states of each question again, [T_i, E]; padding rows have none."""
    out = []
    for i, (row, slot) in enumerate(zip(trunk.row, trunk.slot, strict=True)):
        own = trunk.segments[row] == i + 1
        if not own[slot]:
            own = np.zeros_like(own)
        out.append(np.asarray(trunk.states[row][own]))
    return out


def candidates_of(
    example: Example, task: Task, judged: Sequence
) -> tuple[tuple[str, ...], list[int], frozenset[int]]:
    """The candidates of a question, what each seat said, and which are right.

    Multiple choice: the options, in order. Open answers: the distinct canonical answers, indexed by
    the lowest seat that gave them; where the task has a `same`, answers it calls equal are one
    candidate. Nothing about gold orders or joins them: two right programs are two candidates, as
    they are to a user who has no tests.

    Args:
      example: the question.
      task: its task.
      judged: for each seat a Judged, or None where the call is missing.

    Returns:
      (texts, answer index of each seat or NO_ANSWER, indices of the right ones).

    Raises:
      ValueError: answers that are graded alike have different canonical forms, in a task that has
        no ``same`` and so promises that they have one.
    """
    answers = [
        j.canonical if j is not None and j.outcome in (Outcome.RIGHT, Outcome.WRONG) else None
        for j in judged
    ]
    if example.choices is not None:
        letters = [chr(ord("A") + i) for i in range(len(example.choices))]
        texts = tuple(f"{a}. {t}" for a, t in zip(letters, example.choices, strict=True))
        said = [letters.index(a) if a in letters else NO_ANSWER for a in answers]
        # At inference the gold answer is unknown: it may be empty.
        gold = {letters.index(example.answer)} if example.answer in letters else ()
        return texts, said, frozenset(gold)
    columns: dict[str, int] = {}
    said = []
    for answer in answers:
        if answer is None:
            said.append(NO_ANSWER)
            continue
        first = answer
        if task.same is not None and answer not in columns:
            first = next((c for c in columns if task.same(c, answer)), answer)
        said.append(columns.setdefault(first, len(columns)))
    gold = {
        i for i, j in zip(said, judged, strict=True)
        if j is not None and j.outcome is Outcome.RIGHT
    }  # fmt: skip
    if len(gold) > 1 and task.same is None:
        raise ValueError(
            f"question {example.id}: answers {[t for t, i in columns.items() if i in gold]} are "
            "all graded right but have different canonical forms; the task's canonical() must "
            "agree with its grade()"
        )
    return tuple(columns), said, frozenset(gold)


def make_question_set(
    examples: Sequence[Example], task: Task, pool: Pool,
    replies: Mapping[str, Sequence[Reply | Missing]], trunk: Sequence[np.ndarray],
    queries: np.ndarray, embed, families: Sequence[str], *, first_id: int, orchestrator: str = "M0",
) -> QuestionSet:  # fmt: skip
    """Turn replies into records.

    Args:
      examples: Q questions.
      task: how replies are read and graded.
      pool: the pool; its agents' names and ``orchestrator`` are keys of ``replies``.
      replies: seat → its Q replies.
      trunk: encoder states of the Q questions.
      queries: [Q, E].
      embed: distinct texts → [n, D_c] frozen embeddings.
      families: names, in the order of ``Records.family``.
      first_id: global row id of the first question.
      orchestrator: M0's name in ``replies``.
    """
    seats = (*pool.agents, orchestrator)
    q, n = len(examples), len(seats)
    for seat in seats:
        if len(replies[seat]) != q:
            raise ValueError(f"{seat} has {len(replies[seat])} replies to {q} questions")
    parts = []
    for i, example in enumerate(examples):
        judged = [
            None if isinstance(r := replies[seat][i], Missing)
            else task.judge(r.text, r.finish_reason, example)
            for seat in seats
        ]  # fmt: skip
        parts.append(candidates_of(example, task, judged))
    columns = max([n, *(len(texts) for texts, _, _ in parts)])
    distinct = sorted({t for texts, _, _ in parts for t in texts})
    table = dict(zip(distinct, embed(distinct), strict=True)) if distinct else {}
    embeddings = np.zeros((q, columns, pool.candidate_width), np.float32)
    mask, gold = np.zeros((q, columns), bool), np.zeros((q, columns), bool)
    for i, (texts, _, right) in enumerate(parts):
        gold[i, list(right)] = True
        for c, text in enumerate(texts):
            embeddings[i, c], mask[i, c] = table[text], True
    features = []
    for seat, width in zip(seats, pool.widths, strict=True):
        rows = np.zeros((q, width), np.float32)
        for i, r in enumerate(replies[seat]):
            if isinstance(r, Reply):
                rows[i] = r.hidden
        features.append(rows)
    available = [[isinstance(replies[s][i], Reply) for s in seats] for i in range(q)]
    tokens = [
        [r.total_tokens if isinstance(r := replies[s][i], Reply) else 0 for s in seats]
        for i in range(q)
    ]
    records = Records(
        ids=np.arange(first_id, first_id + q, dtype=np.int32),
        valid=np.ones((q,), bool),
        family=np.array([families.index(e.family) for e in examples], np.int32),
        features=tuple(features),
        available=np.array(available, bool).reshape(q, n),
        answers=np.array([said for _, said, _ in parts], np.int32).reshape(q, n),
        candidates=embeddings,
        candidate_mask=mask,
        choices=np.array([e.choices is not None for e in examples], bool),
        gold=gold,
        tokens=np.array(tokens, np.int32).reshape(q, n),
    )
    money = np.array(
        [[r.money if isinstance(r := replies[s][i], Reply) else 0.0 for s in seats]
         for i in range(q)]
    ).reshape(q, n)  # fmt: skip
    failed = tuple(
        FailedCall(s, examples[i].id, r.state, r.message)
        for s in seats for i in range(q) if isinstance(r := replies[s][i], Missing)
    )  # fmt: skip
    texts_said = tuple(
        tuple(r.text if isinstance(r, Reply) else None for r in replies[s]) for s in seats
    )
    return QuestionSet(tuple(examples), records, tuple(trunk), np.asarray(queries, np.float32),
                       tuple(texts for texts, _, _ in parts), texts_said, money,
                       failed)  # fmt: skip

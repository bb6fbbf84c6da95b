"""A trained GRADE as a library: questions in, answers with their traces out.

``answer`` asks only whom the gates chose, batched by expert; a failed call makes that agent
unavailable for the question and the gates decide again.
"""

import dataclasses
import numbers
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gradejax.experts.ask import Request
from gradejax.experts.replies import Missing, Reply
from gradejax.experts.spec import ExpertSpec
from gradejax.systems import asking
from gradejax.systems.grade import infer as infer_lib
from gradejax.systems.grade.exchange import exchange
from gradejax.systems.grade.network import Params, Shape
from gradejax.systems.questions import QuestionSet, make_question_set
from gradejax.tasks.answers import make_task
from gradejax.tasks.base import Example, Task
from gradejax.tasks.data import lone_surrogate
from gradejax.tasks.prompts import FORMATS
from gradejax.types import Batch

_NOT_ASKED = Missing("failed", "not asked")
NOBODY = -1  # depth of a question that nobody could be asked


@dataclasses.dataclass(frozen=True)
class Trace:
    """How an answer came about.

    Attributes:
      depth: 0 the orchestrator alone, 1 one manager's sub-pool, 2 the pool; NOBODY when no seat
        was left that could be asked.
      manager: its name at depth 1, else None.
      asked: names of the agents whose answer was asked for ("M0" at depth 0).
      read: (reader, read) pairs.
      kept: names of the agents that were kept.
      votes: name → canonical answer (None: no answer) of each agent asked.
      failed: name → why its call failed (also: the question is too long for it), when a fallback
        was needed.
      tokens: prompt and reply tokens of all calls made.
      active_params: parameters evaluated, M0 included; an agent counts each time it is called.
      money: what the calls cost at APIs, in the currency of the prices.
      seconds: of the whole batch, divided by its questions.
    """

    depth: int
    manager: str | None
    asked: tuple[str, ...]
    read: tuple[tuple[str, str], ...]
    kept: tuple[str, ...]
    votes: dict[str, str | None]
    failed: dict[str, str]
    tokens: int
    active_params: int
    money: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Answer:
    """text: the canonical answer, None for none or when abstaining; probability: p_Θ of the answer
    (kept when abstaining); abstained: it fell below ``abstain_below``, or nobody could be asked;
    trace."""

    text: str | None
    probability: float
    abstained: bool
    trace: Trace


@dataclasses.dataclass(frozen=True)
class Anchors:
    """Training questions on which experts can be compared, with each seat's features.

    questions: as asked; features: [n, D_a] per seat; available: [n, A+1].
    """

    questions: tuple[Example, ...]
    features: tuple[np.ndarray, ...]
    available: np.ndarray


@dataclasses.dataclass(frozen=True)
class GradeSystem:
    """A trained system. Frozen: ``swap`` makes another one.

    Attributes:
      frozen: the pool with its models.
      task: how replies are read.
      shape: static facts.
      params: trained. memory: frozen. calibration: statistics.
      anchors: for swaps. without_anchors: when they are None, what is missing.
    """

    frozen: asking.Frozen
    task: Task
    shape: Shape
    params: Params
    memory: Any
    calibration: Any
    anchors: Anchors | None = None
    without_anchors: str = "this system has none; restore it from a run's workdir"

    @property
    def seats(self) -> tuple[str, ...]:
        return self.frozen.registry.names

    def infer(self, batch: Batch, *, decision: str = "threshold", key=None) -> infer_lib.Inference:
        """The jit-compiled function from features to decisions; see ``infer.infer``."""
        return infer_lib.infer(self.shape, self.params, batch, self.memory, self.calibration,
                               decision=decision, key=key)  # fmt: skip

    def answer(self, questions: Sequence[str | Example], *, abstain_below: float = 0.0,
               batch_size: int = 64) -> list[Answer]:  # fmt: skip
        """Answer questions, asking only the experts that the gates choose.

        A question that is too long for a chosen expert counts as a failed call: the gates choose
        again without it. One that is too long for the encoder or for every seat is abstained from
        (``trace.failed`` says why); the others of the call are answered.

        Args:
          questions: texts, or Examples (whose gold answer, if any, is not looked at).
          abstain_below: with p_Θ of the answer below it the text is None.
          batch_size: questions planned and combined at once.

        Returns:
          One Answer a question, in order.

        Raises:
          ValueError: no list of questions, an empty question or one that is no valid text, a
            probability outside [0, 1], a batch size below 1.
        """
        if not isinstance(abstain_below, numbers.Real) or not 0 <= abstain_below <= 1:
            raise ValueError(f"abstain_below must be in [0, 1], got {abstain_below!r}")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
        if isinstance(questions, (str, Example)):
            raise ValueError("answer expects a list of questions; got a single one")
        if not isinstance(questions, Iterable):
            raise ValueError(f"answer expects a list of questions; got {questions!r}")
        examples = [_example(i, q) for i, q in enumerate(questions)]
        out: list[Answer] = []
        for at in range(0, len(examples), batch_size):
            out += self._answer(examples[at : at + batch_size], abstain_below)
        return out

    def _task_of(self, example: Example) -> Task:
        # A bare text has no generator whose rules could read it.
        if self.task.name == "reasoning_gym" and not example.source:
            return make_task("open", "text", FORMATS["open"])
        return self.task

    def _answer(self, examples: list[Example], abstain_below: float) -> list[Answer]:
        begin = time.perf_counter()
        reasons = asking.unreadable(self.frozen, examples)
        if any(reasons):
            rest = [e for e, why in zip(examples, reasons, strict=True) if why is None]
            answered = iter(self._answer(rest, abstain_below) if rest else ())
            return [next(answered) if why is None else self._unread(why) for why in reasons]
        states = asking.trunk_states(self.frozen, examples)
        allowed = np.ones((len(examples), len(self.seats)), bool)
        replies: dict[tuple[str, int], Reply | Missing] = {}
        failed: list[dict[str, str]] = [{} for _ in examples]
        # Each round rules out at least one (question, seat), so it ends.
        while True:
            asked = self._plan(examples, states, allowed)
            wanted = [
                (self.seats[s], i) for i, s in zip(*np.nonzero(asked), strict=True)
                if (self.seats[s], i) not in replies
            ]  # fmt: skip
            if not wanted:
                break
            got = self._ask(examples, wanted)
            replies |= dict(zip(wanted, got, strict=True))
            for (seat, i), reply in zip(wanted, got, strict=True):
                if isinstance(reply, Missing):
                    allowed[i, self.seats.index(seat)] = False
                    failed[i][seat] = f"{reply.state}: {reply.message}"
        given = {
            seat: [replies.get((seat, i), _NOT_ASKED) for i in range(len(examples))]
            for seat in self.seats
        }
        known = self._question_set(examples, given, states)
        # Who may be asked, not who was: the gates must see what they saw when they chose.
        known = dataclasses.replace(known, records=known.records.replace(available=allowed))
        size, length = _bucket(len(known)), -(-known.longest // 32) * 32
        batch = known.batch(range(len(known)), size=size, packed_rows=size, row_length=length)
        result = self.infer(batch)
        seconds = (time.perf_counter() - begin) / len(examples)
        return [
            self._one(i, known, result, given, failed[i], seconds, abstain_below)
            for i in range(len(examples))
        ]

    def _plan(self, examples, states, allowed) -> np.ndarray:
        """Members [n, A+1] that the gates want, among those allowed."""
        nobody = {seat: [_NOT_ASKED] * len(examples) for seat in self.seats}
        empty = self._question_set(examples, nobody, states)
        empty = dataclasses.replace(empty, records=empty.records.replace(available=allowed))
        size, length = _bucket(len(empty)), -(-empty.longest // 32) * 32
        batch = empty.batch(range(len(empty)), size=size, packed_rows=size, row_length=length)
        plan = infer_lib.plan(self.shape, self.params, batch, self.memory, self.calibration)
        return np.asarray(plan.members)[: len(examples)]

    def _ask(self, examples, wanted) -> list[Reply | Missing]:
        head = self.frozen.registry.orchestrator.name
        requests = []
        for seat, i in wanted:
            query = asking.messages_of(examples[i], self._task_of(examples[i]))
            messages = query.orchestrator if seat == head else query.expert
            requests.append(Request(seat, query.id, messages))
        return asking.ask_seats(
            self.frozen, requests, on_error="missing", on_long="missing", max_missing=1.0
        )

    def _unread(self, why: str) -> Answer:
        """Abstains from a question that the encoder, M0's trunk, cannot read."""
        trace = Trace(
            depth=NOBODY, manager=None, asked=(), read=(), kept=(), votes={},
            failed={self.seats[-1]: why}, tokens=0, active_params=0, money=0.0,
            seconds=0.0,
        )  # fmt: skip
        return Answer(None, 0.0, True, trace)

    def _question_set(self, examples, replies, states) -> QuestionSet:
        width = self.shape.pool.trunk_width
        tasks = {e.id: self._task_of(e) for e in examples}
        # One Task that looks up each question's own.
        task = dataclasses.replace(
            self.task,
            extract=lambda t, e: tasks[e.id].extract(t, e),
            canonical=lambda a, e: tasks[e.id].canonical(a, e),
            grade=lambda a, e: False,  # gold is unknown, or none of our business here
        )
        return make_question_set(
            examples, task, self.shape.pool, replies, states,
            np.zeros((len(examples), width), np.float32),
            lambda texts: asking.text_embeddings(self.frozen, texts),
            sorted({e.family for e in examples}), first_id=0,
            orchestrator=self.frozen.registry.orchestrator.name,
        )  # fmt: skip

    def _one(self, i, known, result, given, failed, seconds, abstain_below) -> Answer:
        pool, seats = self.shape.pool, self.seats
        column = int(result.answer[i])
        probability = float(result.probability[i])
        text = known.texts[i][column] if column >= 0 else None
        if text is not None and known.examples[i].choices is not None:
            text = text.split(".", 1)[0]  # the letter of the option
        if int(result.depth[i]) == NOBODY:
            text, probability = None, 0.0  # of options the best would be named all the same
        abstained = int(result.depth[i]) == NOBODY or (
            text is not None and probability < abstain_below
        )
        asked = tuple(s for s, m in zip(seats, result.asked[i], strict=True) if m)
        said = {s: int(known.records.answers[i][seats.index(s)]) for s in asked}
        paid = [s for s in seats if s in asked or s == seats[-1]]
        calls = [r for s in seats if isinstance(r := given[s][i], Reply)]
        readers = np.argwhere(np.asarray(result.read[i]))
        manager = int(result.manager[i])
        trace = Trace(
            depth=int(result.depth[i]),
            manager=pool.managers[manager] if manager >= 0 else None,
            asked=asked,
            read=tuple((seats[a], seats[b]) for a, b in readers),
            kept=tuple(s for s, m in zip(seats, result.kept[i], strict=True) if m),
            votes={s: known.texts[i][c] if c >= 0 else None for s, c in said.items()},
            failed=failed,
            tokens=sum(r.total_tokens for r in calls),
            active_params=sum(pool.params[seats.index(s)] for s in paid),
            money=sum(r.money for r in calls),
            seconds=seconds,
        )
        return Answer(None if abstained else text, probability, abstained, trace)

    def swap(self, seat: str, spec: ExpertSpec, *, align: str | None = None,
             held_out: float = 0.25) -> tuple["GradeSystem", dict[str, Any]]:  # fmt: skip
        """Put another expert on a seat; gates stay as they are. See ``exchange``.

        The adapter Φ of the seat is kept when the weights are the same or, by default, when widths
        match ("keep"); else it is fitted from the new expert's anchor features to the old agent's
        anchor messages ("ridge"). μ̂ and σ̂ are then those of the new messages on the anchors.

        Args:
          seat: which agent.
          spec: the new expert.
          align: "keep", "ridge", or None to choose.
          held_out: share of the anchors that R² is measured on, in [0, 1); 0 measures none.

        Returns:
          (the new system, report: align, held_out_r2, penalty).

        Raises:
          ValueError: unknown seat, the orchestrator's (its trunk is the encoder), no anchors,
            "keep" with other widths, another align or held_out; all before anything is asked.
        """
        if self.anchors is None:
            raise ValueError(
                f"swapping an expert needs the run's anchor questions: {self.without_anchors}"
            )
        return exchange(self, seat, spec, align=align, held_out=held_out)


def _example(i: int, question: str | Example) -> Example:
    text = question.question if isinstance(question, Example) else question
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"question {i} must be a non-empty text or an Example; got {question!r}")
    choices = question.choices or () if isinstance(question, Example) else ()
    for part in (text, *choices):
        if (odd := lone_surrogate(part)) is not None:
            raise ValueError(f"question {i} holds {odd}, which no text can hold: {part[:80]!a}")
    if isinstance(question, Example):
        # Ids of a call must differ; the question's own may repeat.
        return dataclasses.replace(question, id=f"{i}:{question.id}")
    return Example(id=f"{i}", question=question, choices=None, answer="")


def _bucket(n: int) -> int:
    """Batch sizes that are compiled: 1, 4, 16, 64, ..."""
    size = 1
    while size < n:
        size *= 4
    return size

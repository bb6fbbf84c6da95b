"""A trained GRADE as a library: questions in, answers with their traces out.

``answer`` asks only whom the gates chose, batched by expert; a failed call makes that agent
unavailable for the question and the gates decide again.
"""

import dataclasses
import numbers
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradejax.experts.ask import Request
from gradejax.experts.replies import Missing, Reply
from gradejax.experts.spec import ExpertSpec
from gradejax.systems import asking
from gradejax.systems.grade import infer as infer_lib
from gradejax.systems.grade.exchange import exchange
from gradejax.systems.grade.network import Params, Shape
from gradejax.systems.grade.show import Origin, describe_system
from gradejax.systems.grade.trace import NOBODY, Anchors, Answer, Features, Trace
from gradejax.systems.questions import QuestionSet, make_question_set
from gradejax.systems.requests import examples_of
from gradejax.tasks.answers import make_task
from gradejax.tasks.base import Example, Task
from gradejax.types import Batch

Question = str | Example | Mapping[str, Any]  # see ``systems.requests.examples_of``
_NOT_ASKED = Missing("failed", "not asked")


@dataclasses.dataclass(frozen=True, repr=False)
class GradeSystem:
    """A trained system. Frozen: ``swap`` makes another one.

    Attributes:
      frozen: the pool with its models.
      task: how replies are read.
      shape: static facts.
      params: trained. memory: frozen. calibration: statistics.
      anchors: for swaps. without_anchors: when they are None, what is missing.
      origin: the run that it was restored from.
    """

    frozen: asking.Frozen
    task: Task
    shape: Shape
    params: Params
    memory: Any
    calibration: Any
    anchors: Anchors | None = None
    without_anchors: str = "this system has none; restore it from a run's workdir"
    origin: Origin | None = None

    def __repr__(self) -> str:
        return describe_system(self.frozen.registry, self.task, self.shape, self.anchors,
                               self.origin)  # fmt: skip

    @property
    def seats(self) -> tuple[str, ...]:
        return self.frozen.registry.names

    def infer(self, batch: Batch, *, decision: str = "threshold", key=None) -> infer_lib.Inference:
        """The jit-compiled function from features to decisions; see ``infer.infer``.

        ``features`` makes a batch of fresh questions.
        """
        return infer_lib.infer(self.shape, self.params, batch, self.memory, self.calibration,
                               decision=decision, key=key)  # fmt: skip

    def features(self, questions: Sequence[Question]) -> Features:
        """Ask every seat every question (``answer`` asks the chosen ones only), for ``infer``.

        A call that fails, or a prompt too long for its model, makes that seat unavailable for the
        question.

        Args:
          questions: as in ``answer``.

        Raises:
          ValueError: as in ``answer``; no questions; one that is too long for the encoder.
        """
        examples = examples_of(questions, self.task)
        if not examples:
            raise ValueError("features expects at least one question, got none")
        for i, why in enumerate(asking.unreadable(self.frozen, examples)):
            if why is not None:
                raise ValueError(f"question {i}: {why}")
        wanted = [(seat, i) for seat in self.seats for i in range(len(examples))]
        replies = dict(zip(wanted, self._ask(examples, wanted), strict=True))
        given = {seat: [replies[seat, i] for i in range(len(examples))] for seat in self.seats}
        states = asking.trunk_states(self.frozen, examples)
        known = self._question_set(examples, given, states)
        n, length = len(known), -(-known.longest // 32) * 32
        batch = known.batch(range(n), size=n, packed_rows=n, row_length=length)
        return Features(batch, known.texts)

    def answer(self, questions: Sequence[Question], *, abstain_below: float = 0.0,
               batch_size: int = 64) -> list[Answer]:  # fmt: skip
        """Answer questions, asking only the experts that the gates choose.

        A question that is too long for a chosen expert counts as a failed call: the gates choose
        again without it. One that is too long for the encoder or for every seat is abstained from
        (``trace.failed`` says why); the others of the call are answered.

        Args:
          questions: texts, Examples, or dicts with ``question`` and, where there are options,
            ``choices``. A gold answer is not needed, and not looked at. A system that chooses among
            options takes no bare text.
          abstain_below: with p_Θ of the answer below it the text is None.
          batch_size: questions planned and combined at once.

        Returns:
          One Answer a question, in order.

        Raises:
          ValueError: no list of questions, an empty question or one that is no valid text or
            lacks its options, a probability outside [0, 1], a batch size below 1.
        """
        if not isinstance(abstain_below, numbers.Real) or not 0 <= abstain_below <= 1:
            raise ValueError(f"abstain_below must be in [0, 1], got {abstain_below!r}")
        whole = isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool)
        if not whole or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
        examples = examples_of(questions, self.task)
        out: list[Answer] = []
        for at in range(0, len(examples), batch_size):
            out += self._answer(examples[at : at + batch_size], abstain_below)
        return out

    def _task_of(self, example: Example) -> Task:
        # A bare text has no generator whose rules could read it; it is asked as those trained on.
        if self.task.name == "reasoning_gym" and not example.source:
            return make_task("open", "text", self.task.format_slot)
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
            depth=NOBODY, manager=None, asked=(), read=(), kept=(), votes={}, named_by=(),
            failed={self.seats[-1]: why}, tokens=0, active_params=0, money=0.0,
            seconds=0.0,
        )  # fmt: skip
        return Answer(None, 0.0, True, trace)

    def _question_set(self, examples, replies, states) -> QuestionSet:
        width = self.shape.pool.trunk_width
        tasks = {e.id: self._task_of(e) for e in examples}
        # One Task that looks up each question's own. A plain one: a task that grades by running
        # something (code) would run it here too.
        task = Task(
            self.task.name, self.task.format_slot,
            extract=lambda t, e: tasks[e.id].extract(t, e),
            canonical=lambda a, e: tasks[e.id].canonical(a, e),
            grade=lambda a, e: False,  # gold is unknown, or none of our business here
            same=self.task.same,
        )  # fmt: skip
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
            named_by=tuple(s for s, c in said.items() if c >= 0 and c == column),
            failed=failed,
            tokens=sum(r.total_tokens for r in calls),
            active_params=sum(pool.params[seats.index(s)] for s in paid),
            money=sum(r.money for r in calls),
            seconds=seconds,
        )
        return Answer(None if abstained else text, probability, abstained, trace)

    def swap(self, seat: str, spec: ExpertSpec | str | os.PathLike, *, align: str | None = None,
             held_out: float = 0.25, force: bool = False
             ) -> tuple["GradeSystem", dict[str, Any]]:  # fmt: skip
        """Put another expert on a seat; gates stay as they are. See ``exchange``.

        The adapter Φ of the seat is kept when the weights are the same or, by default, when widths
        match ("keep"); else it is fitted from the new expert's anchor features to the old agent's
        anchor messages ("ridge"). μ̂ and σ̂ are then those of the new messages on the anchors.

        Args:
          seat: which agent.
          spec: the new expert; or the path of a model's folder (or .gguf file), which is asked as
            the replaced one was.
          align: "keep", "ridge", or None to choose.
          held_out: share of the anchors that R² is measured on, in [0, 1); 0 measures none.
          force: take an expert whose messages have an R² below 0 all the same.

        Returns:
          (the new system, report: align, held_out_r2, penalty).

        Raises:
          ValueError: unknown seat, the orchestrator's (its trunk is the encoder), no anchors, no
            such folder, "keep" with other widths, another align or held_out; all before anything is
            asked. Afterwards, without ``force``, an R² below 0: the new expert's messages are
            farther from the old agent's than their mean is. This system stays as it was.
        """
        if self.anchors is None:
            raise ValueError(
                f"swapping an expert needs the run's anchor questions: {self.without_anchors}"
            )
        return exchange(self, seat, spec, align=align, held_out=held_out, force=force)


def _bucket(n: int) -> int:
    """Batch sizes that are compiled: 1, 4, 16, 64, ..."""
    size = 1
    while size < n:
        size *= 4
    return size

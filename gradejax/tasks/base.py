"""What a question is, what a reply to it was worth, and what a benchmark family must do.

This is the leaf of `gradejax.tasks`: it holds only types and the one rule that every family
shares, how a reply becomes a verdict. All of it is host code over strings; nothing is traced.
"""

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# finish reasons that mean "the token limit cut the reply": OpenAI-compatible servers say the first,
# some vendors the second.
CUT_REASONS = frozenset({"length", "max_tokens"})

# as models write them: <think>, <thinking>, [THINK], ◁think▷, <|begin_of_thought|>, channels
_NAMES = r"(?:seed:)?(?:think(?:ing)?|thoughts?|reasoning)"
_THINKING_CLOSE = re.compile(
    rf"</{_NAMES}\s{{0,3}}>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>"
    r"|<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)
_THINKING_OPEN = re.compile(
    rf"<{_NAMES}\s{{0,3}}>|\[THINK\]|◁think▷|<\|begin_of_thought\|>"
    r"|<\|channel\|>(?:analysis|commentary)\b",
    re.IGNORECASE,
)


class Outcome(enum.Enum):
    """The verdict on one call. Five things can happen to it, and each is counted apart.

    Giving no answer is never a kind of wrong. A reply cut by the token limit says something of the
    limit and a failed call nothing at all: no answer is read from either, and a missing one is left
    out of accuracy altogether.
    """

    RIGHT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TRUNCATED = "truncated"
    MISSING = "missing"


@dataclass(frozen=True)
class Example:
    """One question.

    Attributes:
      id: unique within its file or generator.
      question: the stem, without the options.
      choices: option texts in the order shown (letters run from A by place), None for open answers.
      answer: the gold: the option's letter for multiple choice, else the answer's text.
      family: benchmark family, e.g. "gsm8k".
      source: name of the generator or file the item came from.
      difficulty: free label of the generator.
      meta: what else the item's own scorer needs, and the extras of its file; not to be changed.
    """

    id: str
    question: str
    choices: tuple[str, ...] | None
    answer: str
    family: str = ""
    source: str = ""
    difficulty: str = ""
    # left out of the hash: a mapping has none, and the other fields already tell items apart
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Judged:
    """The verdict on one reply, under two readings that no figure may mix.

    Attributes:
      outcome: by the flexible reading (cue words, the last number, a line of its own, ...).
      answer: the answer as read from the reply; None unless the outcome is RIGHT or WRONG.
      canonical: the same under the grader's own equivalence, so that votes count equal answers
        as equal.
      strict: by the strict reading (only the marks a prompt can ask for: an ANSWER: line, a box,
        `####`); None where the family has no such reading.
      strict_answer: what the strict reading read.
      cannot_compare: True for a WRONG answer that could not be compared with the gold (it does not
        parse, or the comparison reached its time limit): counted, since a high share means that the
        grader and not the model fails.
    """

    outcome: Outcome
    answer: str | None
    canonical: str | None
    strict: Outcome | None = None
    strict_answer: str | None = None
    cannot_compare: bool = False

    @property
    def truncated(self) -> bool:
        """Did the token limit cut the reply?"""
        return self.outcome is Outcome.TRUNCATED

    @property
    def missing(self) -> bool:
        """Did the call fail?"""
        return self.outcome is Outcome.MISSING


# The verdict on a call that failed: it is missing, never wrong.
MISSING_CALL = Judged(Outcome.MISSING, None, None, Outcome.MISSING)


def after_thinking(text: str) -> str | None:
    """Returns the part of `text` after the last closing thinking tag.

    Returns None when thinking was opened after that and never closed: an unfinished thought is
    not an answer. A closing tag alone counts (chat templates that open the thought put the opening
    tag in the prompt); text without tags is returned whole. Idempotent.
    """
    if not any(mark in text for mark in "<[◁"):
        return text
    closes = list(_THINKING_CLOSE.finditer(text))
    rest = text[closes[-1].end() :] if closes else text
    return None if _THINKING_OPEN.search(rest) else rest


@dataclass(frozen=True)
class Task:
    """A benchmark family as four pure functions of strings.

    Attributes:
      name: family name, for logs and configs.
      format_slot: example -> the `{format}` text of its prompt.
      extract: (reply, example) -> the answer as given, or None when the reply gives none.
      canonical: (answer, example) -> the representative of everything the grader calls equal to it.
        `grade` must be constant on equal canonicals, or a vote and its verdict could disagree.
      grade: (answer or None, example) -> is it right? None is never right.
      strict: (reply, example) -> the answer where it stands in a mark a prompt can ask for, else
        None; None for a family without such a reading.
      same: (canonical, canonical) -> are both one answer although their canonicals differ
        ("1/\\sqrt{2}" and "\\sqrt{2}/2")? None where canonicals decide. Costs a comparison.
      compared: (answer, example) -> could the answer be compared with the gold at all?
      needs_choices: replies are read against an item's options; one without them cannot be asked.
      needs_meta: entries of an item's `meta` without which no reply to it can be read.
    """

    name: str
    format_slot: Callable[[Example], str]
    extract: Callable[[str, Example], str | None]
    canonical: Callable[[str, Example], str]
    grade: Callable[[str | None, Example], bool]
    strict: Callable[[str, Example], str | None] | None = None
    same: Callable[[str, str], bool] | None = None
    compared: Callable[[str, Example], bool] | None = None
    needs_choices: bool = False
    needs_meta: tuple[str, ...] = ()

    def judge(self, reply_text: str | None, finish_reason: str | None, example: Example) -> Judged:
        """Reads and grades one reply.

        Args:
          reply_text: the visible reply. None (all tokens went to thinking) is no answer.
          finish_reason: "stop", "length", ... as the engine or server reports it. A reply cut by
            the token limit yields no answer even when its last number happens to be right: grading
            it would measure the limit and not the model.
          example: the question.

        A *failed* call has no reply and must not be judged at all; it is missing, not wrong.
        """
        if finish_reason in CUT_REASONS:
            cut = Outcome.TRUNCATED
            return Judged(cut, None, None, cut if self.strict else None)
        visible = None if reply_text is None else after_thinking(reply_text)
        answer = None if visible is None else self.extract(visible, example)
        strict = strict_answer = None
        if self.strict is not None:
            strict_answer = None if visible is None else self.strict(visible, example)
        outcome = self._outcome(answer, example)
        if self.strict is not None:
            again = strict_answer == answer
            strict = outcome if again else self._outcome(strict_answer, example)
        if answer is None:
            return Judged(outcome, None, None, strict, strict_answer)
        unclear = outcome is Outcome.WRONG and self.compared is not None
        unclear = unclear and not self.compared(answer, example)
        canonical = self.canonical(answer, example)
        return Judged(outcome, answer, canonical, strict, strict_answer, unclear)

    def _outcome(self, answer: str | None, example: Example) -> Outcome:
        if answer is None:
            return Outcome.NO_ANSWER
        return Outcome.RIGHT if self.grade(answer, example) else Outcome.WRONG


def outcome_shares(judged: Sequence[Judged], *, strict: bool = False) -> dict[str, float]:
    """Shares of the five outcomes, each in [0, 1]; they add to 1.

    Args:
      judged: one or more verdicts.
      strict: count the strict reading, else the flexible one; never some of each.

    Raises:
      ValueError: `judged` is empty (a share of nothing is not 0), or a strict reading is asked of a
        family that has none.
    """
    if not judged:
        raise ValueError("expected at least one judged reply, got none")
    outcomes = [j.strict if strict else j.outcome for j in judged]
    if None in outcomes:
        raise ValueError("expected replies with a strict reading, got a family without one")
    return {o.value: outcomes.count(o) / len(outcomes) for o in Outcome}

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

_THINKING_CLOSE = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THINKING_OPEN = re.compile(r"<think(?:ing)?>", re.IGNORECASE)


class Outcome(enum.Enum):
    """The verdict on one reply. Giving no answer is its own outcome, never a kind of wrong."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"


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
    """The verdict on one reply.

    Attributes:
      outcome: right, wrong or no answer.
      answer: the answer as read from the reply; None exactly when the outcome is NO_ANSWER.
      canonical: the same under the grader's own equivalence, so that votes count equal answers
        as equal.
      truncated: True when the token limit cut the reply (a state of its own: its share is logged).
    """

    outcome: Outcome
    answer: str | None
    canonical: str | None
    truncated: bool = False


def after_thinking(text: str) -> str | None:
    """Returns the part of `text` after the last closing thinking tag.

    Returns None when thinking was opened after that and never closed: an unfinished thought is
    not an answer. A closing tag alone counts (chat templates that open the thought put the opening
    tag in the prompt); text without tags is returned whole. Idempotent.
    """
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
    """

    name: str
    format_slot: Callable[[Example], str]
    extract: Callable[[str, Example], str | None]
    canonical: Callable[[str, Example], str]
    grade: Callable[[str | None, Example], bool]

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
        truncated = finish_reason in CUT_REASONS
        visible = None if truncated or reply_text is None else after_thinking(reply_text)
        answer = None if visible is None else self.extract(visible, example)
        if answer is None:
            return Judged(Outcome.NO_ANSWER, None, None, truncated)
        outcome = Outcome.RIGHT if self.grade(answer, example) else Outcome.WRONG
        return Judged(outcome, answer, self.canonical(answer, example), truncated)


def outcome_shares(judged: Sequence[Judged]) -> dict[str, float]:
    """Shares of right, wrong, no_answer and truncated replies, each in [0, 1] over all of `judged`.

    The first three add to 1; truncated replies are also among no_answer. Raises ValueError when
    `judged` is empty: a share of nothing is not 0.
    """
    if not judged:
        raise ValueError("expected at least one judged reply, got none")
    n = len(judged)
    shares = {o.value: sum(j.outcome is o for j in judged) / n for o in Outcome}
    shares["truncated"] = sum(j.truncated for j in judged) / n
    return shares

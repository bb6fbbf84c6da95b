r"""Where a reply states a number: `ANSWER: n`, \boxed{n}, `#### n`, cue words, its last number.

The *strict* reading takes only the marks that a prompt can ask for (an ANSWER: line, a box, GSM8K's
`####`, an answer tag). The *flexible* one also takes cue words and, failing them, the last number.
"""

import functools
import re

from gradejax.tasks.base import after_thinking
from gradejax.tasks.numbers import (
    MAX_CHARS,
    clean,
    decimal_text,
    gives_several,
    last_number,
    leads_with_number,
    parse,
    read_number,
)
from gradejax.tasks.reading import (
    MAX_JOINED,
    Stated,
    asked_answer,
    boxes,
    cues,
    first_sentence,
    is_withdrawn,
    last_boxes,
    last_standing,
    tagged,
    undecorated,
)

_HASHES = re.compile(r"####+[ \t]*([^\n]*)")
_HASH_NUMBER = re.compile(r"(?![+-]?\d+[.):]\s+\S)[+-]?\s?\.?\d")
_HAS_DIGIT = re.compile(r"[\d½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]")

# "ANSWER: not 5", "The answer is not 5." say what the answer is not
_NEGATED = re.compile(r"\W{0,8}not\s+(?:equal to\s+)?[-+$\\]{0,3}\.?\d[\d.,/]*", re.IGNORECASE)


def extract_number(text: str, example) -> str | None:
    r"""Reads a number from a reply, flexibly; None when it gives none.

    The last `ANSWER:` line decides; else the latest of the last standing box, `#### n`, `answer: n`
    and "answer is n"; else the last number of the reply, wherever it stands (no tail window). A
    stated answer that is no single number ("18 or 20", a formula) is returned as text, to be graded
    as wrong: a number inside it must not be compared instead. One without any digit is no answer.
    """
    del example
    return _read(text)[0]


def extract_number_strictly(text: str, example) -> str | None:
    """Reads a number that stands in a mark a prompt can ask for; None when none does."""
    del example
    return _read(text)[1]


# both readings of one reply are asked for one after the other
@functools.lru_cache(maxsize=4)
def _read(text: str) -> tuple[str | None, str | None]:
    visible = after_thinking(text)
    if visible is None:
        return None, None
    asked = asked_answer(visible)
    if asked is not None:
        answer = _number_or_text(asked)
        return answer, answer
    marks = _marks(visible)
    strict = _value_of(max(marks)) if marks else None
    said = sorted(cues(visible))
    spoken = [(s.start, (s.text,)) for s in _spoken(said, visible)]
    stated = max([*marks, *spoken], default=None)
    if stated:
        return _value_of(stated), strict
    return last_number(visible[_taken_back_until(said, visible) :]), strict


def _marks(text: str) -> list[tuple[int, tuple[str, ...]]]:
    """(position, contents) of the last box statement and of every `####` and tag with a digit."""
    last = [*last_standing(_hashes(text), text), *last_standing(tagged(text), text)]
    found = [(s.start, (s.text,)) for s in last]
    last = last_boxes(text)
    if last:
        found.append((last[-1].start, tuple(box.text for box in last)))
    return [f for f in found if any(map(_HAS_DIGIT.search, f[1]))]


def _spoken(spoken: list[Stated], text: str) -> list[Stated]:
    """The last cue that gives a number; without a colon only where the number comes first."""
    for cue in reversed(spoken):
        said = cue.text if cue.colon else first_sentence(cue.text)
        if not _HAS_DIGIT.search(said) or is_withdrawn(cue, text):
            continue
        direct = leads_with_number(said) and (read_number(said) or gives_several(said))
        if cue.colon or direct:
            return [cue._replace(text=said)]
    return []


def _taken_back_until(spoken: list[Stated], text: str) -> int:
    """Where the last withdrawn statement ends: its number must not come back as "the last"."""
    kinds = (boxes(text), _hashes(text), tagged(text), spoken)
    statements = [s for kind in kinds for s in kind[-MAX_JOINED:]]
    ends = [s.end for s in statements if _HAS_DIGIT.search(s.text) and _is_denied(s, text)]
    return max(ends, default=0)


def _is_denied(statement: Stated, text: str) -> bool:
    """Withdrawn, or "not 5" with no other number after it ("not 5 but 6")."""
    negated = _NEGATED.match(statement.text)
    alone = negated and not _HAS_DIGIT.search(first_sentence(statement.text[negated.end() :]))
    return bool(alone) or is_withdrawn(statement, text)


def _value_of(statement: tuple[int, tuple[str, ...]]) -> str | None:
    """One number, or, where boxes of one statement hold different things, all of their text."""
    answers = [_number_or_text(content) for content in statement[1]]
    if len(answers) == 1:
        return answers[0]
    values = {decimal_text(parse(a)) if a and parse(a) is not None else a for a in answers}
    return answers[-1] if len(values) == 1 else " and ".join(filter(None, answers))


def _number_or_text(stated: str) -> str | None:
    stated = stated[: MAX_CHARS + 1]
    inside = boxes(stated)
    stated = inside[-1].text if inside else stated
    if not _HAS_DIGIT.search(stated) or _NEGATED.match(stated):
        return None
    return read_number(stated) or undecorated(stated)


def _hashes(text: str) -> list[Stated]:
    """`#### n` lines. A markdown heading of level four ("#### Step 3: ...") is none."""
    if "####" not in text:
        return []
    found = []
    for match in _HASHES.finditer(text):
        # nothing but currency marks and minus signs may stand before the number
        if _HASH_NUMBER.match(clean(match[1][:40])):
            found.append(Stated(match.start(), match[1][:MAX_CHARS], True, match.end()))
    return found

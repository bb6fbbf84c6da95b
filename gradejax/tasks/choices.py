"""Reads the letter of a multiple-choice reply.

Only a *stated* answer counts: after a cue, in a box, on a line of its own, or as the whole reply.
The pronoun I, the article a, and letters mentioned in passing are not answers, letters are limited
to the item's own options, two letters in one statement are none, and nothing found is "no answer",
never a guess.
"""

import functools
import re
import string
import unicodedata

from gradejax.tasks.base import Example, after_thinking
from gradejax.tasks.choice_patterns import (
    BARE_END,
    DIGIT_LEAD,
    LABELLED_LINE,
    LEAD,
    LETTER_LINE,
    MORE_LETTERS,
    PICKED,
    PICKED_GATE,
    SENTENCE_GOES_ON,
    TOLD,
    TOLD_GATE,
)
from gradejax.tasks.choice_texts import letter_of_text
from gradejax.tasks.reading import (
    MAX_JOINED,
    MAX_STATEMENT,
    Stated,
    asked_answer,
    boxes,
    cues,
    first_sentence,
    is_withdrawn,
    last_boxes,
    normalise,
    standing,
    tagged,
    undecorated,
)

LETTERS = string.ascii_uppercase
# "ANSWER: A -> no, B", "ANSWER: A. Actually, B.": the letter after the correction is meant
_CORRECTED = re.compile(
    r"(?<=[\w)*])\s?(?:->|→|[.,;—–-])\s?"
    r"(?:(?:no|wait|actually|sorry|oops|rather|i mean)[,.:;\s]\s?){1,3}"
    r"(?:(?:it['’]s|it is|i mean)\s)?(?=[(*]{0,3}[A-Z](?![\w'’]))(?!I\s[a-z]|A\s[a-z])",
    re.IGNORECASE,
)
SEVERAL = "?"  # a statement that claims more than one option


def option_letters(example: Example) -> str:
    """The letters of the example's own options, from A by place."""
    if not example.choices:
        raise ValueError(f"expected an example with choices, got none (id {example.id!r})")
    return LETTERS[: len(example.choices)]


def extract_choice(text: str, example: Example) -> str | None:
    """The letter a reply states, or None.

    The last `ANSWER:` line decides alone once it says something. Else the last readable cue or box
    does; a last cue that names no own option ("The answer is I" of four) gives None rather than an
    earlier letter. Else a line of its own or the whole reply, when it is a letter or an option. A
    cue may be followed by the full text of exactly one option in place of its letter, and by a
    digit where the item's own labels are digits.
    """
    return _readings(text, example)[0]


def extract_choice_strictly(text: str, example: Example) -> str | None:
    """The letter in a mark that a prompt can ask for: an `ANSWER:` line, a box, an answer tag."""
    return _readings(text, example)[1]


def canonical_choice(answer: str, example: Example) -> str:
    """The letter of an answer given as a letter or as an option's text; else normalised text."""
    letters = option_letters(example)
    if len(answer) == 1 and answer in letters:
        return answer
    letter = _own(_whole_reply(_plain(answer), example), letters)
    return letter or "no option: " + normalise(answer)


def _readings(text: str, example: Example) -> tuple[str | None, str | None]:
    # the key holds what the reading depends on: an example's meta is a mapping and has no hash
    labels = tuple(example.meta.get("labels") or example.meta.get("orig_labels") or ())
    return _read_both(text, example, labels)


# both readings of one reply are asked for one after the other
@functools.lru_cache(maxsize=4)
def _read_both(text: str, example: Example, labels: tuple) -> tuple[str | None, str | None]:
    visible = after_thinking(text)
    if visible is None:
        return None, None
    visible = _plain(visible)
    letters = option_letters(example)
    asked = asked_answer(visible)
    if asked is not None:
        asked = _CORRECTED.split(asked)[-1]
        direct = _read(Stated(0, asked, True), example)
        inside = [*_marked(asked, example), *_said(asked, example)]
        answer = direct or _last(inside) or _quick(asked) or _line(asked, example)
        return (_own(answer, letters),) * 2
    marked = _marked(visible, example)
    strict = _own(_last(marked), letters)
    stated = _last([*marked, *_said(visible, example)])
    stated = stated or _whole_reply(visible, example) or _quick(visible)
    return _own(stated or _line(visible, example), letters), strict


def _plain(text: str) -> str:
    """Full-width and circled letters as plain ones."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _own(letter: str | None, letters: str) -> str | None:
    return letter if letter and letter in letters else None


def _last(readings: list[tuple[int, str]]) -> str | None:
    return max(readings)[1] if readings else None


def _marked(text: str, example: Example) -> list[tuple[int, str]]:
    """(position, letter) of the last readable box statement and of the last answer tag."""
    found = []
    for statement in standing(tagged(text), text):
        letter = _read(statement, example)
        if letter:
            found.append((statement.start, letter))
            break
    last = last_boxes(text)
    letters = {_read(box, example) for box in last} - {None}
    if letters:
        found.append((last[-1].start, SEVERAL if len(letters) > 1 else letters.pop()))
    elif "boxed{" in text or "fbox" in text:  # the last box holds something else, say a number
        for box in standing(boxes(text)[-MAX_JOINED:], text):
            letter = _read(box, example)
            if letter:
                found.append((box.start, letter))
                break
    return found


def _said(text: str, example: Example) -> list[tuple[int, str]]:
    """(position, letter) of the last readable cue."""
    for cue in sorted(cues(text), reverse=True):
        letter = _read(cue, example)
        if letter and not is_withdrawn(cue, text):
            return [(cue.start, letter)]
    return []


def _quick(text: str) -> str | None:
    """The letter of the last "B is correct", "I choose B" and the like."""
    found = []
    if TOLD_GATE.search(text):
        found += TOLD.finditer(text)
    lowered = text.lower()
    if any(word in lowered for word in PICKED_GATE):
        found += PICKED.finditer(text)
    for match in sorted(found, key=re.Match.start, reverse=True):
        letter = _read_quick(match, text)
        if letter:
            return letter
    return None


def _read_quick(match: re.Match, text: str) -> str | None:
    groups = match.groupdict()
    if groups.get("before"):  # "neither A nor B is correct"
        return None
    picked = bool(groups.get("pick"))
    start, told = match.start(), groups.get("told") or groups.get("bracket")
    if picked:
        told = text[match.end() : match.end() + MAX_STATEMENT].split("\n", 1)[0]
        before = text[max(0, start - 24) : start]
        if re.search(r"(?:not|n['’]t|never|to|would you|did you)\s+(?:\w+\s+)?$", before, re.I):
            return None
    elif re.search(r"[a-z]", told.strip("()[]*_\"'`. ")[-1:]):
        return None
    statement = Stated(start, told, not groups.get("told"), match.end())
    lead = LEAD.match(told)
    if not lead or is_withdrawn(statement, text):
        return None
    if picked:
        bare = lead["letter"].islower() and lead["after"][:1] != ")"
        if bare or not _letter_is_meant(lead, True):
            return None
        if MORE_LETTERS.match(lead["after"]):
            return SEVERAL
    return lead["letter"].upper()


def _read(stated: Stated, example: Example) -> str | None:
    """The letter that one statement gives: None when it gives none, "?" when it gives several."""
    text = stated.text[:MAX_STATEMENT]
    lead = LEAD.match(text)
    meant = lead and _letter_is_meant(lead, stated.colon)
    # an option may be called "I and II", and of the options C, N, O the letter C is the third
    alone = meant and BARE_END.fullmatch(lead["after"])
    alone = alone and lead["letter"].upper() in option_letters(example)
    by_text = None if alone else letter_of_text(text, example)
    if by_text:
        return by_text
    if meant:
        return SEVERAL if MORE_LETTERS.match(lead["after"]) else lead["letter"].upper()
    return letter_of_text(first_sentence(text), example) or _by_digit(text, example)


def _letter_is_meant(lead: re.Match, colon: bool) -> bool:
    letter, after = lead["letter"], lead["after"]
    if letter.islower():
        bracketed = lead.string[lead.start("letter") - 1 : lead.start("letter")] == "("
        return bool(BARE_END.match(after)) and (colon or bracketed and after.startswith(")"))
    return not (letter in "AI" and SENTENCE_GOES_ON.match(after))


def _by_digit(text: str, example: Example) -> str | None:
    """The letter of a digit label, where the item's own labels are digits or it is called one."""
    match = DIGIT_LEAD.match(text)
    if not match:
        return None
    labels = [str(x) for x in example.meta.get("labels") or example.meta.get("orig_labels") or ()]
    if not labels and re.match(r"(?:the )?(?:option|choice)", match["named"], re.IGNORECASE):
        labels = [str(i + 1) for i in range(len(example.choices))]
    if re.match(r"\s{0,3}(?:,|or\b|and\b|/|&)\s{0,3}[(]?[1-9]\b", match["after"]):
        return SEVERAL if match["digit"] in labels else None
    return LETTERS[labels.index(match["digit"])] if match["digit"] in labels else None


def _whole_reply(text: str, example: Example) -> str | None:
    if len(text) > 4 * MAX_STATEMENT:
        return None
    whole = undecorated(text)
    boxed = boxes(whole)
    if boxed:
        if is_withdrawn(boxed[-1], whole):
            return None
        whole = boxed[-1].text
    bare = re.fullmatch(r"[\s*_(\[{$]*([A-Za-z])[\s*_)\]}$.:]*", whole)
    if bare:
        letter = bare[1].upper()
        return letter if letter in option_letters(example) else letter_of_text(whole, example)
    labelled = LABELLED_LINE.fullmatch(whole)
    if labelled and letter_of_text(labelled[2], example) == labelled[1]:
        return labelled[1]
    return letter_of_text(whole, example) or _by_digit_alone(whole, example)


def _by_digit_alone(text: str, example: Example) -> str | None:
    alone = re.fullmatch(r"(?i:the )?(?i:option|choice)?[\s(\[*_]{0,9}[1-9][\s)\]*_.:]{0,9}", text)
    return _by_digit(text, example) if alone else None


def _line(text: str, example: Example) -> str | None:
    """A letter on a line of its own, or a labelled option: last line, else first.

    Where such lines name different letters (the options repeated), there is no answer.
    """
    if len(text) > 4000:
        text = text[:2000] + "\n" + text[-2000:]
    lines = [line for line in text.splitlines() if line.strip()]
    named = [(i, _of_line(line, example)) for i, line in enumerate(lines)]
    named = [(i, letter) for i, letter in named if letter]
    if len({letter for _, letter in named}) != 1:
        return None
    return named[0][1] if {i for i, _ in named} & {0, len(lines) - 1} else None


def _of_line(line: str, example: Example) -> str | None:
    line = line.strip()[: 5 * MAX_STATEMENT]
    bare = LETTER_LINE.fullmatch(line)
    if bare:
        return bare[1]
    labelled = LABELLED_LINE.fullmatch(line)
    if not labelled or labelled[1] not in LETTERS[: len(example.choices)]:
        return None
    said = labelled[2]
    matches = labelled[1] in (
        letter_of_text(said, example), letter_of_text(first_sentence(said), example)
    )  # fmt: skip
    return labelled[1] if matches else None

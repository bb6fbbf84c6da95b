"""Reads the letter of a multiple-choice reply.

Only a *stated* answer counts: after a cue, in a box, or as the whole reply. The pronoun I, the
article a, and letters mentioned in passing are not answers, letters are limited to the item's own
options, and nothing found is "no answer", never a guess.
"""

import re
import string

from gradejax.tasks.base import Example, after_thinking
from gradejax.tasks.reading import Stated, asked_answer, boxes, cues, normalise, undecorated

LETTERS = string.ascii_uppercase

_OPENING = r"[\s*_`\"'“”(\[$]*(?:\\[(\[]\s*)?"
_LEAD = re.compile(
    rf"{_OPENING}(?:\\(?:text|textbf|mathrm|mathbf)\s?\{{)?{_OPENING}"
    rf"(?:(?:option|choice|letter)\s+{_OPENING})?"
    r"(?P<letter>[A-Za-z])(?![\w'’+#]|-\w)(?P<after>.*)",
    re.IGNORECASE | re.DOTALL,
)
# "I think ...", "A common ...": a pronoun or an article, unless one of these words follows.
_SENTENCE_GOES_ON = re.compile(
    r"\s+(?!(?:because|since|as|and|or|for|with|which|given|is|due|where|by)\b)[a-z]"
)
# "B or C", "A, B and D": several answers are no single choice.
_MORE_LETTERS = re.compile(
    r"(?:[)\]}*_\s]*(?:,\s*(?:or\b|and\b)?|/|&|or\b|and\b|oder\b|und\b|ou\b|et\b)"
    r"\s*[(\[*_]*[A-Z](?![\w'’-]))+[)\]}*_]*\s*(?:[.!\n]|$)"
)
_BARE_END = re.compile(r"[\s)\]}*_`\"'”$.,:;!\\]*(?:$|\n|[.:;,)]\s)")


def option_letters(example: Example) -> str:
    """The letters of the example's own options, from A by place."""
    if not example.choices:
        raise ValueError(f"expected an example with choices, got none (id {example.id!r})")
    return LETTERS[: len(example.choices)]


def extract_choice(text: str, example: Example) -> str | None:
    """The letter a reply states, or None.

    The last `ANSWER:` line decides alone once it says something. Else the last readable cue or box
    does; a last cue that names no own option ("The answer is I" of four) gives None rather than an
    earlier letter. Else the whole reply, when it is a letter or an option. A cue may be followed by
    the full text of exactly one option in place of its letter.
    """
    visible = after_thinking(text)
    if visible is None:
        return None
    letters = option_letters(example)
    asked = asked_answer(visible)
    if asked is not None:
        direct = _read(Stated(0, asked, True), example)
        return _own(direct or _last_reading(asked, example), letters)
    stated = _last_reading(visible, example)
    return _own(stated or _whole_reply(visible, example), letters)


def canonical_choice(answer: str, example: Example) -> str:
    """The letter of an answer given as a letter or as an option's text; else normalised text."""
    letter = _own(_whole_reply(answer, example), option_letters(example))
    return letter or "no option: " + normalise(answer)


def _own(letter: str | None, letters: str) -> str | None:
    return letter if letter and letter in letters else None


def _last_reading(text: str, example: Example) -> str | None:
    """What the last readable cue or box of `text` gives."""
    readings = [(s.start, _read(s, example)) for s in (*boxes(text), *cues(text))]
    return max((r for r in readings if r[1]), default=(0, None))[1]


def _read(stated: Stated, example: Example) -> str | None:
    """The letter that one statement gives: None when it gives none, "?" when it gives several."""
    lead = _LEAD.match(stated.text)
    if lead and _letter_is_meant(lead, stated.colon):
        return "?" if _MORE_LETTERS.match(lead["after"]) else lead["letter"].upper()
    sentence = re.split(r"[.!?](?:\s|$)", stated.text, maxsplit=1)[0]
    return _by_text(stated.text, example) or _by_text(sentence, example)


def _letter_is_meant(lead: re.Match, colon: bool) -> bool:
    letter, after = lead["letter"], lead["after"]
    if letter.islower():
        return colon and bool(_BARE_END.match(after))
    return not (letter in "AI" and _SENTENCE_GOES_ON.match(after))


def _whole_reply(text: str, example: Example) -> str | None:
    whole = undecorated(text)
    boxed = boxes(whole)
    if boxed:
        whole = boxed[-1].text
    bare = re.fullmatch(r"[\s*_(\[$]*([A-Za-z])[\s*_)\]$.:]*", whole)
    if bare:
        return bare[1].upper()
    labelled = re.fullmatch(r"[*_(\[]*([A-Z])[*_)\].:]+\s+(.+)", whole, re.DOTALL)
    if labelled and _by_text(labelled[2], example) == labelled[1]:
        return labelled[1]
    return _by_text(whole, example)


def _by_text(text: str, example: Example) -> str | None:
    """The letter of the one option whose text this is; None for none or for several."""
    wanted = normalise(undecorated(text))
    hits = [i for i, choice in enumerate(example.choices) if normalise(choice) == wanted]
    return LETTERS[hits[0]] if len(hits) == 1 and wanted else None

"""Finds where a reply states its answer: boxes, ANSWER: lines, cue words of several languages.

Shared by the answer kinds; what the stated text *means* is each kind's own business.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

# Words that announce an answer. A convention, not a fact: extend it for other languages.
CUE_WORDS = (
    "answer", "correct choice", "correct option", "antwort", "antwoord", "respuesta", "réponse",
    "reponse", "resposta", "risposta", "odpowiedź", "svar", "ответ", "答案", "答え", "정답",
)  # fmt: skip
# "is" after such a word.
CUE_VERBS = (
    "is", "should be", "must be", "would be", "ist", "es", "est", "è", "é", "jest", "är", "er",
    "是", "为", "は", "은",
)  # fmt: skip
# A statement is short; a bound keeps a reply of nothing but cues from costing quadratic time.
MAX_STATEMENT = 400


def _alternatives(words: tuple[str, ...], before: str, after: str) -> str:
    """A pattern for any of `words`; scripts that put no blanks between words get no boundaries."""
    ordered = sorted(words, key=len, reverse=True)
    spaced = [re.escape(word) for word in ordered if word < "\u2e80"]
    unspaced = [re.escape(word) for word in ordered if word >= "\u2e80"]
    return f"(?:{before}(?:{'|'.join(spaced)}){after}|{'|'.join(unspaced)})"


_CUE = re.compile(
    _alternatives(CUE_WORDS, r"(?<![^\W_])", "")
    + r"(?: choice| option| letter)?(?: (?:to|for) [^.:\n]{1,120}?)?[ \t*_]{0,8}"
    + "(?:"
    + _alternatives(CUE_VERBS, r"(?<![^\W\d_])", r"(?![^\W\d_])")
    + r"[ \t*_]{0,8}(?P<colon>[:\uff1a])?|(?P<only_colon>[:\uff1a]))",
    re.IGNORECASE,
)
# The form our prompts ask for, written as asked: capitals, at the start of a line.
_ASKED = re.compile(r"^[ \t>*_#\-]{0,16}(?:FINAL )?ANSWER[ \t*_]{0,8}[:\uff1a](.*)$", re.MULTILINE)
# A prompt echoed back ("ANSWER: <value>") states nothing.
_PLACEHOLDER = re.compile(r"^<[A-Za-z _-]{1,30}>")
_BOX_TOKEN = re.compile(r"\\+(?:boxed|fbox)\s{0,4}(?P<box>\{)|\\.|[{}]", re.DOTALL)
_DECORATION = " \t\r\n*_`\"'“”‘’"


class Stated(NamedTuple):
    """One place where a reply states an answer."""

    start: int  # position in the reply; the last one wins
    text: str  # what is stated
    colon: bool  # True after a colon or in a box, where even a bare lower-case letter is meant


def boxes(text: str) -> list[Stated]:
    r"""Contents of all complete \boxed{...} and \fbox{...}, in the order of their opening.

    Braces are matched (`\boxed{\frac{1}{2}}` holds `\frac{1}{2}`), escaped braces do not count, and
    a box that is never closed is left out. One pass: linear even for a reply of nothing but
    openings.
    """
    found, open_braces = [], []
    for token in _BOX_TOKEN.finditer(text):
        if token["box"] or token[0] == "{":
            open_braces.append((token.start(), token.end(), bool(token["box"])))
        elif token[0] == "}" and open_braces:
            start, inside, is_box = open_braces.pop()
            if is_box:
                found.append(Stated(start, text[inside : token.start()].strip(), True))
    return sorted(found)


def asked_answer(text: str) -> str | None:
    """What the last `ANSWER:` line with content says; None when no such line says anything.

    The value may stand on the next non-empty line. An echoed `ANSWER: <value>` says nothing.
    """
    for match in reversed(list(_ASKED.finditer(text))):
        content = undecorated(match[1][:MAX_STATEMENT]) or _next_line(text, match.end())
        if content and not _PLACEHOLDER.match(content):
            return content
    return None


def cues(text: str) -> Iterator[Stated]:
    """All `answer is ...`, `Answer: ...` and the like, each with the rest of its line.

    After a colon at the end of a line the next non-empty line is the statement.
    """
    for match in _CUE.finditer(text):
        colon = bool(match["colon"] or match["only_colon"])
        window = text[match.end() : match.end() + MAX_STATEMENT]
        rest = window.split("\n", 1)[0].strip()
        if not rest.strip(_DECORATION + "$(["):
            rest = _next_line(text, match.end() + len(rest)) if colon else ""
        if rest and not _PLACEHOLDER.match(rest) and not _CUE.match(rest):
            yield Stated(match.start(), rest, colon)


def has_cue(text: str) -> bool:
    """Does `text` announce an answer at all, given or not?"""
    return bool(_CUE.search(text))


def undecorated(text: str) -> str:
    """`text` without blanks, quotes and markdown emphasis around it."""
    return text.strip(_DECORATION)


def normalise(text: str) -> str:
    """Lower case, runs of blanks to one, none beside signs, final .?! off; signs are kept.

    "What is 2 + 2 ?" and "what is 2+2" meet; "2+2" and "2-2" stay apart.
    """
    text = re.sub(r"\s+", " ", text.lower())
    text = re.sub(r" ?([^\w\s]) ?", r"\1", text).strip()
    return text.rstrip(".?!") or text


def _next_line(text: str, position: int) -> str:
    window = text[position : position + MAX_STATEMENT].splitlines()
    return next((undecorated(line) for line in window if undecorated(line)), "")

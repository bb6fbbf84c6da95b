"""Finds where a reply states its answer: boxes, ANSWER: lines, cue words of several languages.

Shared by the answer kinds; what the stated text *means* is each kind's own business. Every pattern
here is linear in the reply: repetitions are bounded, since a reply may be a megabyte of anything.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Words that announce an answer. A convention, not a fact: extend it for other languages.
CUE_WORDS = (
    "answer", "correct choice", "correct option", "right choice", "right option", "best choice",
    "best option", "final choice", "antwort", "antwoord", "respuesta", "réponse", "reponse",
    "resposta", "risposta", "odpowiedź", "svar", "ответ", "答案", "答え", "정답",
)  # fmt: skip
# "is" after such a word.
CUE_VERBS = (
    "is", "should be", "must be", "would be", "will be", "has to be", "was", "ist", "lautet", "es",
    "est", "è", "é", "jest", "är", "er", "是", "为", "は", "은",
)  # fmt: skip
# A statement is short; a bound keeps a reply of nothing but cues from costing quadratic time.
MAX_STATEMENT = 400
# Nobody lists more answers in one statement; a reply may consist of nothing but boxes.
MAX_JOINED = 50


def _alternatives(words: tuple[str, ...], before: str, after: str) -> str:
    """A pattern for any of `words`; scripts that put no blanks between words get no boundaries."""
    ordered = sorted(words, key=len, reverse=True)
    spaced = [re.escape(word) for word in ordered if word < "\u2e80"]
    unspaced = [re.escape(word) for word in ordered if word >= "\u2e80"]
    return f"(?:{before}(?:{'|'.join(spaced)}){after}|{'|'.join(unspaced)})"


_CUE = re.compile(
    _alternatives(CUE_WORDS, r"(?<![^\W_])", "")
    + r"(?: choice| option| letter| correcta| correcte| correta| corretta)?"
    + r"(?: (?:to|for) [^.:\n]{1,80}?)?[ \t*_\"'`]{0,8}"
    + "(?:"
    + _alternatives(CUE_VERBS, r"(?<![^\W\d_])", r"(?![^\W\d_])")
    + r"[ \t*_]{0,8}(?P<colon>[:\uff1a])?|(?P<only_colon>[:\uff1a=→]|=>|->))",
    re.IGNORECASE,
)
# A heading "Answer" or "**Final answer**" alone on its line: the next line is the statement.
_HEADING = re.compile(
    r"^[ \t>*_#]{0,16}(?:(?:my|the) )?(?:final |correct )?(?:answer|antwort)[ \t*_]{0,8}$",
    re.IGNORECASE | re.MULTILINE,
)
# The form our prompts ask for, written as asked: capitals, at the start of a line.
_ASKED = re.compile(r"^[ \t>*_#\-]{0,16}(?:FINAL )?ANSWER[ \t*_]{0,8}[:\uff1a](.*)$", re.MULTILINE)
# A prompt echoed back ("ANSWER: <value>") states nothing.
_PLACEHOLDER = re.compile(r"^[<\[(]?<[A-Za-z _-]{2,30}>")
_BOX_TOKEN = re.compile(
    r"\\{1,4}(?:boxed|fbox|framebox)(?:\s{0,4}(?P<box>\{)|\s{1,4}(?P<bare>[^\s${}\\]{1,60}))"
    r"|\\.|[{}]",
    re.DOTALL,
)
_ANSWER_TAG = re.compile(r"<(?P<close>/)?answer>", re.IGNORECASE)
_DECORATION = " \t\r\n*_`\"'“”‘’"

# "... is not \boxed{7}": what the words right before a statement take back
_DENIED = re.compile(
    r"(?:\bnot|n[’']t(?: be)?|\bcannot be|\binstead of|\brather than|\bno longer"
    r"|\b(?:withdraw|retract|discard|disregard|ignore)(?: (?:my|the))?"
    r"(?: (?:earlier|previous|first|answer|of))*)"
    r"[\s$*_(\\\[:]*$",
    re.IGNORECASE,
)
# "If the answer is 7, ...": supposed, not stated
_SUPPOSED = re.compile(
    r"\b(?:if|whether|suppos(?:e|ing)|assum(?:e|ing))(?:\s+that)?(?:\s+(?:the|my|our|your))?"
    r"(?:\s+(?:final|right))?\s*$",
    re.IGNORECASE,
)
# "\boxed{7} is wrong", "\boxed{7}. Wait, that is not right": what the words after it take back
_WRONG = (
    r"(?:(?:clearly|certainly|definitely|obviously|actually|also) )?"
    r"(?:wrong|incorrect|false|mistaken|invalid|not (?:right|correct|the (?:right|correct|answer))"
    r"|(?:a mistake|an error)|(?:too (?:large|small|high|low|big|many|few)\b))"
)
_TAKEN_BACK = re.compile(
    r"[\s$*_)\\\].,;:!?—–-]{0,16}(?:"
    rf"(?:is|was|would be|seems|can(?:no|['’])t be)\s+{_WRONG}"
    r"|(?:(?:no|wait|hmm+|oh|oops|sorry|actually|but|hold on)\b[\s,.;:!…—–-]{0,6}){0,4}"
    rf"(?:(?:that|this|it|which)(?:['’]s|\s+is|\s+was|\s+must be|\s+seems)\s+{_WRONG}"
    rf"|(?:that|this|it)\s+(?:isn|wasn|can)['’]t\s+(?:be\s+)?(?:right|correct)"
    r"|scratch that|(?:i\s+)?(?:withdraw|retract|take back)(?:\s+(?:that|this|it))?"
    r"(?!\s+(?:the answer\s+)?\$?\\)"  # "I withdraw \boxed{7}" takes back that box
    r"|(?:please\s+)?(?:ignore|disregard)\s+(?:that|this|it)\b)"
    r"|(?:no[,\s]+wait|wait[,\s]+no)\b"
    r"|(?:actually|oops|sorry|hmm+|no)[,\s]+no\b(?=[\s]*(?:[,.;:!—–-]|$))"
    r"|(?:but|yet|though|although|however),?\s+(?:it|that|this)(?:['’]s|\s+is|\s+was)"
    r"(?:\s+not|n[’']t)(?=\s*(?:[.!,;]|$))"
    r"|i\s+(?:doubt|don['’]t\s+(?:think|believe))\s+(?:it|that|this|so)\b)",
    re.IGNORECASE,
)
# What may stand between two boxes of one statement: "\boxed{1} and \boxed{2}". No full stop.
_JOINED = re.compile(
    r"[\s$,;/&()\[\]\\]{0,12}(?:(?:\\text\s?\{\s?)?(?:and|or|und|oder|ou|et)(?:\s?\})?)?"
    r"[\s$,;/&()\[\]\\]{0,12}",
    re.IGNORECASE,
)


# Format characters (category Cf): zero widths, direction marks, a byte-order mark; and selectors of
# a sign's look. None can be seen, and all of them come with text copied from elsewhere.
_UNSEEN = re.compile(
    "[\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\ufe00-\ufe0f\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001"
    "\U000e0020-\U000e007f]"
)


class Stated(NamedTuple):
    """One place where a reply states an answer."""

    start: int  # position in the reply; the last one wins
    text: str  # what is stated
    colon: bool  # True after a colon or in a box, where even a bare lower-case letter is meant
    end: int = 0  # position after it


def boxes(text: str) -> list[Stated]:
    r"""Contents of all complete \boxed{...} and \fbox{...}, in the order of their opening.

    Braces are matched (`\boxed{\frac{1}{2}}` holds `\frac{1}{2}`), escaped braces do not count, and
    a box that is never closed is left out; TeX's `\boxed 5` holds the next word. One pass: linear
    even for a reply of nothing but openings.
    """
    if "\\" not in text:
        return []
    found, open_braces = [], []
    for token in _BOX_TOKEN.finditer(text):
        if token["box"] or token[0] == "{":
            open_braces.append((token.start(), token.end(), bool(token["box"])))
        elif token["bare"]:
            found.append(Stated(token.start(), token["bare"].rstrip(".,;"), True, token.end()))
        elif token[0] == "}" and open_braces:
            start, inside, is_box = open_braces.pop()
            if is_box:
                content = text[inside : token.start()].strip()
                found.append(Stated(start, content, True, token.end()))
    return sorted(found)


def tagged(text: str) -> list[Stated]:
    """Contents of all complete `<answer>...</answer>`."""
    found, opened = [], None
    for tag in _ANSWER_TAG.finditer(text):
        if not tag["close"]:
            opened = tag
        elif opened is not None:
            content = text[opened.end() : tag.start()].strip()
            found.append(Stated(opened.start(), content, True, tag.end()))
            opened = None
    return found


def is_withdrawn(statement: Stated, text: str) -> bool:
    """Do the words right before or after a statement take it back ("wait, that is wrong")?"""
    before = text[max(0, statement.start - 60) : statement.start]
    after = text[statement.end : statement.end + 120]
    return bool(_DENIED.search(before) or _TAKEN_BACK.match(after))


def standing(statements: Sequence[Stated], text: str) -> Iterator[Stated]:
    r"""The statements that stand, the last first.

    "I withdraw \boxed{6}" takes back the earlier \boxed{6} as well as itself, and no later one.
    """
    gone = set()
    for statement in reversed(statements):
        if is_withdrawn(statement, text):
            gone.add(statement.text)
        elif statement.text not in gone:
            yield statement


def last_standing(statements: Sequence[Stated], text: str) -> list[Stated]:
    """The last of the statements that is not withdrawn, in a list; empty when there is none."""
    return list(itertools.islice(standing(statements, text), 1))


def last_boxes(text: str) -> list[Stated]:
    r"""The boxes of the last statement: one, or several that are joined ("\boxed{1}, \boxed{2}").

    Boxes that are withdrawn are passed over; a box inside another belongs to the outer one.
    """
    outer: list[Stated] = []
    for box in boxes(text):
        if not outer or box.start >= outer[-1].end:
            outer.append(box)
        elif outer[-1].text == text[box.start : box.end]:
            outer[-1] = Stated(outer[-1].start, box.text, True, outer[-1].end)
    kept: list[Stated] = []
    gone = set()  # as in `standing`
    for box in reversed(outer):
        if len(kept) == MAX_JOINED:
            break
        if kept and not _JOINED.fullmatch(text[box.end : kept[-1].start]):
            break
        if is_withdrawn(box, text):
            gone.add(box.text)
            if kept:
                break
        elif box.text not in gone:
            kept.append(box)
    return kept[::-1]


def asked_answer(text: str) -> str | None:
    """What the last standing `ANSWER:` line with content says; None when no line says anything.

    The value may stand on the next non-empty line. An echoed `ANSWER: <value>` says nothing.
    """
    if "ANSWER" not in text:
        return None
    for match in reversed(list(_ASKED.finditer(text))):
        content = undecorated(match[1][:MAX_STATEMENT])
        end = match.start(1) + _sentence_end(match[1])
        if not content:
            content, end = _next_line(text, match.end())
        if content and not _PLACEHOLDER.match(content) and not _ASKED.match(content):
            line = Stated(match.start(), content, True, end)
            if not is_withdrawn(line, text):
                return content
    return None


def cues(text: str) -> Iterator[Stated]:
    """All `answer is ...`, `Answer: ...` and the like, each with the rest of its line.

    After a colon at the end of a line, and after a heading, the next non-empty line is meant.
    """
    # the pattern is tried at every place, a plain search is not: most replies have few cue words
    lowered = text.lower()
    first = min((i for word in CUE_WORDS if (i := lowered.find(word)) >= 0), default=None)
    if first is None:
        return
    for match in _CUE.finditer(text, first if len(lowered) == len(text) else 0):
        if _SUPPOSED.search(text[max(0, match.start() - 40) : match.start()]):
            continue
        colon = bool(match["colon"] or match["only_colon"])
        window = text[match.end() : match.end() + MAX_STATEMENT]
        line = window.split("\n", 1)[0]
        rest, end = line.strip(), match.end() + _sentence_end(line)
        if not rest.strip(_DECORATION + "$(["):
            rest, end = _next_line(text, match.end() + len(line)) if colon else ("", end)
        if rest and not _PLACEHOLDER.match(rest) and not _CUE.match(rest):
            yield Stated(match.start(), rest, colon, end)
    for match in _HEADING.finditer(text):
        rest, end = _next_line(text, match.end())
        if rest and not _PLACEHOLDER.match(rest) and not _CUE.match(rest):
            yield Stated(match.start(), rest, True, end)


def has_cue(text: str) -> bool:
    """Does `text` announce an answer at all, given or not?"""
    return bool(_CUE.search(text))


def readable(text: str) -> str:
    """`text` as it is read, for every kind: no unseen characters, accents composed (NFC)."""
    return text if text.isascii() else unicodedata.normalize("NFC", _UNSEEN.sub("", text))


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


def first_sentence(text: str) -> str:
    """`text` up to the mark that ends its first sentence; "3.5" and "e.g.:" hold no such mark."""
    return text[: _sentence_end(text)]


def _sentence_end(line: str) -> int:
    end = re.search(r"[.!?](?=[\s*_\"”]|$)", line)
    return end.start() if end else len(line)


def _next_line(text: str, position: int) -> tuple[str, int]:
    """The next non-empty line after `position`, undecorated, and where it ends."""
    window = text[position : position + MAX_STATEMENT]
    for line in re.finditer(r"[^\n]+", window):
        content = undecorated(line[0])
        if content:
            return content, position + line.end()
    return "", position

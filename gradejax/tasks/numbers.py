r"""Reads numbers as people and models write them, and compares them exactly.

A number starts and ends with a digit (or starts with a decimal point), may hold group commas and
one decimal part, and keeps its sign. "1,050.50", "$1{,}050.5" and "2101/2" are one number. Where
a formula is not fully understood (`2\sqrt{3}`, "18 or 20"), no number is picked out of it.
"""

import re
from fractions import Fraction

from gradejax.tasks.base import after_thinking
from gradejax.tasks.reading import Stated, asked_answer, boxes, cues, normalise, undecorated

# Longer digit strings are no answer to any benchmark, and Python refuses to convert very long ones.
MAX_CHARS = 300
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d+)?|\.\d+)"
_POWER = r"(?:[eE][+-]?\d{1,2}(?![\d.])|\s?(?:\\times|\\cdot|×|\*)\s?10\^\{?(?:[+-]?\d{1,2})\}?)"
_VALUE = (
    rf"(?:(?P<whole>{_INTEGER})\s{{1,3}}(?P<top>\d+)/(?P<bottom>\d+)"
    rf"|(?P<numerator>{_DECIMAL})(?:\s?/\s?(?P<denominator>{_DECIMAL})|(?P<power>{_POWER}))?)"
)
_ANYWHERE = re.compile(rf"(?<![A-Za-z_\d])(?<!\d\.){_VALUE}")
_LEADING = re.compile(rf"(?P<sign>[+-]?)\s?{_VALUE}")
_HASHES = re.compile(r"####+[ \t]*([^\n]*)")

# What may not follow a leading number: an operator or formula makes it a part of something else ...
_FORMULA_GOES_ON = re.compile(
    r"\s*(?:[-+*/^=<>×÷·\\_{~±|√π]|(?:[bijknxyz]|pi|sqrt)(?![A-Za-z']))", re.IGNORECASE
)
# ... and a second number makes it one of several answers.
_LIST_GOES_ON = re.compile(
    r"\s*(?:,|;|:|&|or\b|and\b|to\b|oder\b|und\b|bis\b)\s*[(]?[-+]?\.?\d|\s+\d"
)
_UNIT = re.compile(r"(?:[A-Za-z]{2,}|[gmshlLcd])(?![A-Za-z])")


def clean(text: str) -> str:
    r"""Replaces LaTeX and typographic forms of plain numbers: minus signs, {,}, \$, \%, \frac."""
    text = re.sub("[\u2212\u2013\ufe63\uff0d]", "-", text)
    text = re.sub(r"(?<=\d)(?:\{,\}|\\,|\\!|[\u2009\u202f])(?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\[dtc]?frac\s?\{(-?[\d.,]+)\}\s?\{([\d.,]+)\}", r" \1/\2 ", text)
    text = re.sub(r"\\[dtc]?frac\s?(\d)\s?(\d)", r" \1/\2 ", text)
    text = re.sub(r"\^\{?\\circ\}?|°|\\?%", " ", text)
    text = re.sub(r"\\[()\[\]]|\\left|\\right|\\[,;:! ]|\\?\$|[€£¥]|\*\*|`", "", text)
    return text.strip()


def read_number(text: str) -> str | None:
    r"""The one number that `text` (the stated answer, not a whole reply) gives, or None.

    Read whole where possible; else what stands after the last "="; else a leading number with its
    unit; else the only number of the text. Several numbers or a formula give None. Returns plain
    text that `parse` reads: "1050.50", "-7", "1/2".
    """
    text = undecorated(clean(text))
    text = re.sub(r"\s*\([^()]*\)\s*[.!]?$", "", text) or text.strip("() ")
    if "=" in text:
        text = text[text.rindex("=") + 1 :].strip()
    # blanks as group marks ("1 000") only where the answer begins: elsewhere they part numbers
    text = re.sub(r"^[+-]?\d{1,3}(?: \d{3})+(?!\d)", lambda m: m[0].replace(" ", ""), text)
    leading = _LEADING.match(text)
    if leading:
        rest = text[leading.end() :]
        if _FORMULA_GOES_ON.match(rest) or _LIST_GOES_ON.match(rest):
            return None
        if rest[:1].isalpha() and rest[:1].isascii() and not _UNIT.match(rest):
            return None
        return _plain(leading, leading["sign"] == "-", rest)
    if re.search(r"[\\^_{}]", text):
        return None
    found = {_plain(m, _negative(text, m.start()), text[m.end() :]) for m in _numbers(text)}
    return found.pop() if len(found) == 1 else None


def last_number(text: str) -> str | None:
    """The last number of free text, as `parse` reads it, or None."""
    text = clean(text)
    found = list(_numbers(text))
    return _plain(found[-1], _negative(text, found[-1].start()), "") if found else None


def parse(text: str) -> Fraction | None:
    """The exact value of a stated number, or None when it is not one number."""
    plain = read_number(text) if len(text) <= MAX_CHARS else None
    if plain is None:
        return None
    try:
        numerator, _, denominator = plain.partition("/")
        return Fraction(numerator) / Fraction(denominator or 1)
    except (ValueError, ZeroDivisionError):
        return None


def is_plain_number(text: str) -> bool:
    """Is `text` nothing but a number? ("3 apples" is not; "0011" is a code, not a number.)"""
    return (
        bool(re.fullmatch(rf"[+-]?\$?(?!0\d){_VALUE}%?", text.strip())) and parse(text) is not None
    )


def extract_number(text: str, example) -> str | None:
    r"""Reads a number from a reply; None when it gives none.

    The last `ANSWER:` line decides; else the later of the last \boxed{}, `#### n` and
    `answer: n`; else the last number of the reply, wherever it stands (no tail window). A stated
    answer that is no single number ("18 or 20", a formula) is returned as text, to be graded as
    wrong: a number inside it must not be compared instead. One without any digit is no answer.
    """
    del example
    visible = after_thinking(text)
    if visible is None:
        return None
    asked = asked_answer(visible)
    if asked is not None:
        return _number_or_text(asked)
    stated = [*boxes(visible), *_hashes(visible), *(c for c in cues(visible) if c.colon)]
    stated = [s for s in stated if re.search(r"\d", s.text)]
    if stated:
        return _number_or_text(max(stated).text)
    return last_number(visible)


def canonical_number(answer: str, example) -> str:
    """Exact decimal ("1050.5") or lowest-terms fraction ("1/3"); other text is normalised."""
    del example
    value = parse(answer)
    if value is None:
        return normalise(answer)
    denominator = value.denominator
    twos_and_fives = 0
    while denominator % 2 == 0 or denominator % 5 == 0:
        denominator //= 2 if denominator % 2 == 0 else 5
        twos_and_fives += 1
    if denominator != 1:
        return f"{value.numerator}/{value.denominator}"
    scaled = str(abs(value.numerator) * 10**twos_and_fives // value.denominator)
    scaled = scaled.rjust(twos_and_fives + 1, "0")
    whole, decimals = scaled[: len(scaled) - twos_and_fives], scaled[len(scaled) - twos_and_fives :]
    decimals = decimals.rstrip("0")
    return ("-" if value < 0 else "") + whole + ("." + decimals if decimals else "")


def canonical_integer(answer: str, example) -> str:
    """An integer 0..999 without leading zeros and trailing ".0" (AIME); other text is kept apart.

    A negative, larger or non-integer answer never equals a gold, and there is no substring test:
    "173" is not "73", "66/2" is not "33".
    """
    del example
    inside = boxes(answer)
    text = undecorated(clean(inside[-1].text if inside else answer))
    match = re.fullmatch(r"\+?0*(\d{1,3})(?:\.0*)?", text)
    return str(int(match[1])) if match else "not in 0..999: " + normalise(text)


def _number_or_text(stated: str) -> str | None:
    stated = stated[: MAX_CHARS + 1]
    inside = boxes(stated)
    stated = inside[-1].text if inside else stated
    if not re.search(r"\d", stated):
        return None
    return read_number(stated) or undecorated(stated)


def _hashes(text: str) -> list[Stated]:
    """`#### n` lines. A markdown heading of level four ("#### Step 3: ...") is none."""
    found = []
    for match in _HASHES.finditer(text):
        content = clean(match[1])
        leading = _LEADING.match(content)
        if leading and not re.match(r"[.):]\s+\S", content[leading.end() :]):
            found.append(Stated(match.start(), match[1], True))
    return found


def _numbers(text: str):
    return _ANYWHERE.finditer(text)


def _negative(text: str, start: int) -> bool:
    """Is there a minus right before `start` that is a sign, not a subtraction or a hyphen?"""
    if text[start - 1 : start] != "-":
        return False
    before = text[: start - 1]
    return not (re.search(r"[\d)\]}]\s?$", before[-2:]) or re.search(r"[A-Za-z_]$", before[-1:]))


def _plain(match: re.Match, negative: bool, rest: str) -> str:
    sign = "-" if negative else ""
    if match["whole"]:
        bottom = int(match["bottom"][:MAX_CHARS])
        top = int(match["whole"].replace(",", "")[:MAX_CHARS]) * bottom
        return f"{sign}{top + int(match['top'][:MAX_CHARS])}/{bottom}"
    plain = match["numerator"].replace(",", "")
    if match["denominator"]:
        return f"{sign}{plain}/{match['denominator'].replace(',', '')}"
    if match["power"]:
        return f"{sign}{plain}e{re.search(r'[+-]?[0-9]+[}]?$', match['power'])[0].rstrip('}')}"
    scale = re.match(rf"\s?({'|'.join(_SCALES)})\b", rest, re.IGNORECASE)
    if scale:
        return str(Fraction(sign + plain) * _SCALES[scale[1].lower()])
    return sign + plain

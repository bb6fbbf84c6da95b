r"""Reads numbers as people and models write them, and compares them exactly.

A number starts and ends with a digit (or starts with a decimal point), may hold group marks and
one decimal part, and keeps its sign. "1,050.50", "$1{,}050.5" and "2101/2" are one number. Where
a formula is not fully understood (`2\sqrt{3}`, "18 or 20"), no number is picked out of it.
"""

import functools
import re
from fractions import Fraction

from gradejax.tasks.reading import boxes, normalise, undecorated

# Longer digit strings are no answer to any benchmark, and Python refuses to convert very long ones.
MAX_CHARS = 300
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9,
           "trillion": 10**12}  # fmt: skip
_VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5",
           "⅗": "3/5", "⅘": "4/5", "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8",
           "⅞": "7/8"}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d+)?|\.\d+)"
_TEN = r"10\s?(?:\^|\*\*)\s?[({]?\s?[+-]?\d{1,2}(?!\d)\s?[)}]?"
_POWER = (
    r"(?:[eE][+-]?\d{1,2}(?![\d.])"
    rf"|[^\S\n]?(?:\\times|\\cdot|×|·|\*|[xX])[^\S\n]?{_TEN})"
)
_VALUE = (
    rf"(?:(?P<whole>{_INTEGER})[^\S\n]{{1,3}}(?P<top>\d+)/(?P<bottom>\d+)"
    rf"|(?P<ten>{_TEN})"
    rf"|(?P<numerator>{_DECIMAL})(?:[^\S\n]?/[^\S\n]?(?P<denominator>{_DECIMAL})"
    rf"|(?P<power>{_POWER}))?)"
)
_ANYWHERE = re.compile(rf"(?<![A-Za-z_\d])(?<!\d\.){_VALUE}")
_LEADING = re.compile(rf"(?P<sign>[+-]?)\s?{_VALUE}")

# What may not follow a leading number: an operator or formula makes it a part of something else ...
_FORMULA_GOES_ON = re.compile(
    r"\s*(?:[-+*/^=<>×÷·\\_{~±|√π⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]|[.,]\d"
    r"|(?:[bijknxyz]|pi|sqrt)(?![A-Za-z']))",
    re.IGNORECASE,
)
# ... and a second number makes it one of several answers.
_LIST_GOES_ON = re.compile(
    r"\s*(?:,|;|:|&|or\b|and\b|to\b|oder\b|und\b|bis\b)\s*[(]?[-+]?\.?\d|\s+\d"
)
# "5 feet 6 inches": a second amount of measure goes on with the first
_MEASURE = (
    r"(?:feet|foot|ft|inch(?:es)?|in|hours?|hrs?|h|minutes?|mins?|seconds?|secs?|days?|weeks?"
    r"|months?|years?|pounds?|lbs?|ounces?|oz|dollars?|cents?|miles?|yards?|kilomet(?:er|re)s?"
    r"|met(?:er|re)s?|centimet(?:er|re)s?|km|m|cm|mm|kg|g|gallons?|quarts?|pints?)"
)
_AMOUNT_GOES_ON = re.compile(
    rf"\s?{_MEASURE}(?:,?\s(?:and\s)?|,)\s?\d+(?:\.\d+)?\s?{_MEASURE}(?![A-Za-z])"
    rf"|\s?(?:{'|'.join(_SCALES)})\s(?:and\s)?\d",
    re.IGNORECASE,
)
# "x = 5 or x = 6", "x=5, y=6": up to the last "=" another variable's value, or another one of x
_ANOTHER_VALUE = re.compile(
    r"=\s?([-+]?\d[\d.,/]*?)\s?"
    r"(?:[,;]|,?\s?(?:or|and)\b)\s?\\?[A-Za-z]\w{0,2}\s?$"
)
_UNIT = re.compile(r"(?:[A-Za-z]{2,}|[gmshlLcdCFKNJWVA])(?![A-Za-z])")
# Words that may stand before a stated number without changing it.
_FILLER = re.compile(
    r"(?:(?:approximately|approx\.?|about|around|roughly|exactly|equal(?:s)? to|equals|simply|just"
    r"|therefore|thus|then|clearly|indeed|hence|a total of|is|USD|EUR|GBP|US|Rs\.?)\s+"
    r"|[≈~=:]\s*|\\approx\s*)+",
    re.IGNORECASE,
)

_MINUS = re.compile("[\u2212\u2013\ufe63\uff0d]")
_GROUP_MARK = re.compile(r"(?<=\d)(?:\{,\}|\\,|\\!|,\\!|\\ |[\u2009\u202f\u00a0'’])(?=\d{3}(?!\d))")
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s?\{((?:[^{}]|\{[^{}]{0,50}\}){0,200})\}"
)
_FRACTION = re.compile(r"(-\s?)?\\[dtc]?frac\s?\{(-?[\d.,]{1,300})\}\s?\{([\d.,]{1,300})\}")
_SHORT_FRACTION = re.compile(r"(-\s?)?\\[dtc]?frac\s?(\d)\s?(\d)")
_DEGREES = re.compile(r"\^\{?\\circ\}?|°|\\?%")
_MARKS = re.compile(r"\\[()\[\]]|\\left|\\right|\\[,;:! ]|(?:\b(?:US|CA|AU|NZ|HK))?\\?\$|[€£¥₹]"
                    r"|(?<!\d)\*\*|\*\*(?!\d)|`")  # fmt: skip
_WORD_SIGN = re.compile(r"\b(?:minus|negative)\s(?=[$\d.])", re.IGNORECASE)
_SUPER = re.compile("(?<=10)[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]{1,3}")
_VULGAR_PART = re.compile(f"(?<=\\d) ?([{''.join(_VULGAR)}])|([{''.join(_VULGAR)}])")


def clean(text: str) -> str:
    r"""Replaces LaTeX and typographic forms of plain numbers: minus signs, {,}, \$, \%, \frac."""
    if not text.isascii():
        text = _MINUS.sub("-", text)
        text = _SUPER.sub(lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
        text = _VULGAR_PART.sub(lambda m: " " + _VULGAR[m[1] or m[2]], text)
    text = _GROUP_MARK.sub(",", text)
    if "\\" in text:
        text = _TEXT_COMMAND.sub(r" \1 ", text)
        text = _FRACTION.sub(_slashed, text)
        text = _SHORT_FRACTION.sub(_slashed, text)
    text = _DEGREES.sub(" ", text)
    text = _MARKS.sub("", text)
    return _WORD_SIGN.sub("-", text).strip()


def _slashed(match: re.Match) -> str:
    negative = "-" in (match[1] or "") or match[2].startswith("-")
    return f" {'-' if negative else ''}{match[2].lstrip('-')}/{match[3]} "


def read_number(text: str) -> str | None:
    r"""The one number that `text` (the stated answer, not a whole reply) gives, or None.

    Read whole where possible; else what stands after the last "="; else a leading number with its
    unit; else the only number of the text. Several numbers ("x=5, y=6", "5 feet 6 inches") or a
    formula give None. Returns plain text that `parse` reads: "1050.50", "-7", "1/2".

    By convention the decimal mark is a point and groups are of three: "1.234,50" and "12,34,567"
    are no numbers, as "1.234" could be either.
    """
    text = undecorated(clean(text[: 2 * MAX_CHARS]))
    without = re.sub(r"\s{0,9}\((?!or [-+]?\d+\))[^()]*\)\s{0,9}[.!]?$", "", text)
    text = without or text.strip("() ")
    if "=" in text:
        before, _, text = (part.strip() for part in text.rpartition("="))
        another = _ANOTHER_VALUE.search(before)
        if another and another[1].rstrip(".,") != text.rstrip(".,"):
            return None
        if re.fullmatch(r"[-+]?\d+", before) and re.fullmatch(r"[-+]?\d+", text):
            return text if int(before) == int(text) else None  # "5 = 6" says nothing
    text = _FILLER.sub("", text, count=1) if _FILLER.match(text) else text
    # blanks as group marks ("1 000") only where the answer begins: elsewhere they part numbers
    text = re.sub(r"^[+-]?\d{1,3}(?: \d{3})+(?!\d)", lambda m: m[0].replace(" ", ""), text)
    leading = _LEADING.match(text)
    if leading:
        rest = text[leading.end() :]
        if _FORMULA_GOES_ON.match(rest) or _LIST_GOES_ON.match(rest):
            return None
        if _AMOUNT_GOES_ON.match(rest) or re.match(r"\s?\(or [-+]?\d+\)", rest):
            return None
        if rest[:1].isalpha() and rest[:1].isascii() and not _UNIT.match(rest):
            return None
        return _plain(leading, leading["sign"] == "-", rest)
    if re.search(r"[\\^_{}]", text):
        return None
    found = {_plain(m, _negative(text, m.start()), text[m.end() :]) for m in _numbers(text)}
    return found.pop() if len(found) == 1 else None


def gives_several(text: str) -> bool:
    """Does `text` begin with a list or a choice of numbers ("18 or 20")?"""
    text = clean(text[:MAX_CHARS]).lstrip(" \t*_`\"'“”‘’([")
    leading = _LEADING.match(text)
    return bool(leading and _LIST_GOES_ON.match(text, leading.end()))


def leads_with_number(text: str) -> bool:
    """Does `text` begin with a number, fillers ("about", "=") and currency aside?"""
    text = clean(text[:MAX_CHARS]).lstrip(" \t*_`\"'“”‘’([")
    filler = _FILLER.match(text)
    return bool(_LEADING.match(text, filler.end() if filler else 0))


def last_number(text: str) -> str | None:
    """The last number of free text, as `parse` reads it, or None."""
    if len(text) < 60 and leads_with_number(text):  # nothing but a number: "-1 234.5 kg"
        whole = read_number(text)
        if whole is not None:
            return whole
    # most replies end in their number: a window is tried first, cut where no number can begin
    for size in (400, len(text)):
        window = text[-size:]
        if size < len(text):
            window = window[window.find("\n") + 1 :] if "\n" in window else ""
        window = clean(window)
        found = None
        for found in _numbers(window):  # noqa: B007  the last match is wanted
            pass
        if found:
            return _plain(found, _negative(window, found.start()), window[found.end() :])
    return None


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


def decimal_text(value: Fraction) -> str:
    """Exact decimal ("1050.5") where there is one, else the lowest-terms fraction ("1/3")."""
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


def canonical_number(answer: str, example) -> str:
    """Exact decimal ("1050.5") or lowest-terms fraction ("1/3"); other text is normalised."""
    del example
    return _canonical_number(answer)


@functools.lru_cache(maxsize=4096)
def _canonical_number(answer: str) -> str:
    value = parse(answer)
    return normalise(answer) if value is None else decimal_text(value)


def canonical_integer(answer: str, example) -> str:
    """An integer 0..999 without leading zeros and trailing ".0" (AIME); other text is kept apart.

    A negative (but -0), larger or non-integer answer never equals a gold, and there is no substring
    test: "173" is not "73", "66/2" is not "33".
    """
    del example
    inside = boxes(answer)
    text = undecorated(clean(inside[-1].text if inside else answer))
    text = re.sub(r"^-(?=0+(?:\.0*)?$)", "", text)
    match = re.fullmatch(r"\+?0*(\d{1,3})(?:\.0*)?", text)
    return str(int(match[1])) if match else "not in 0..999: " + normalise(text)


def _numbers(text: str):
    return _ANYWHERE.finditer(text)


def _negative(text: str, start: int) -> bool:
    """Is there a minus right before `start` that is a sign, not a subtraction or a hyphen?"""
    if text[start - 1 : start] != "-":
        return False
    before = text[max(0, start - 4) : start - 1]
    return not (re.search(r"[\d)\]}]\s?$", before[-2:]) or re.search(r"[A-Za-z_]$", before[-1:]))


def _plain(match: re.Match, negative: bool, rest: str) -> str:
    sign = "-" if negative else ""
    if match["whole"]:
        bottom = int(match["bottom"][:MAX_CHARS])
        top = int(match["whole"].replace(",", "")[:MAX_CHARS]) * bottom
        return f"{sign}{top + int(match['top'][:MAX_CHARS])}/{bottom}"
    if match["ten"]:
        return f"{sign}1e{_exponent(match['ten'])}"
    plain = match["numerator"].replace(",", "")
    if match["denominator"]:
        return f"{sign}{plain}/{match['denominator'].replace(',', '')}"
    if match["power"]:
        return f"{sign}{plain}e{_exponent(match['power'])}"
    scale = re.match(rf"\s?({'|'.join(_SCALES)})\b", rest, re.IGNORECASE)
    if scale:
        return str(Fraction(sign + plain) * _SCALES[scale[1].lower()])
    return sign + plain


def _exponent(power: str) -> str:
    return re.search(r"[+-]?\d+(?=\s?[)}]?$)", power)[0]

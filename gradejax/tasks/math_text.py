r"""Plain forms of formulas: what differs in writing only, and what a LaTeX parser can read."""

import re

from gradejax.tasks.numbers import decimal_text, parse
from gradejax.tasks.reading import boxes, undecorated

# Longer texts are no answers, and deeper ones only cost time.
MAX_CHARS, MAX_DEPTH = 400, 25

_SYMBOLS = {
    "−": "-", "–": "-", "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "÷": r"\div ",
    "π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "θ": r"\theta ", "∅": r"\emptyset ", "′": "'",
    "½": r"\frac{1}{2}", "²": "^{2}", "³": "^{3}", "°": "", "\u2009": " ", "\u00a0": " ",
}  # fmt: skip
_TRANSLATED = str.maketrans(_SYMBOLS)
_SPACING = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad(?![a-zA-Z])|~|\\displaystyle|\\limits")
_DELIMITERS = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?")
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s?\{([^{}]{0,200})\}"
)
_UNIT_WORDS = (
    r"square|cubic|sq\.?|cm|mm|km|m|in|inch(?:es)?|feet|foot|ft|yards?|miles?|units?|degrees?"
    r"|dollars?|cents?|seconds?|minutes?|hours?|days?|weeks?|years?|percent|points?|meters?|metres?"
    r"|centimeters?|kilometers?|grams?|kg|pounds?|liters?|mph|radians?|people|students|ways"
)
_UNITS = re.compile(
    rf"(?<=[\d}})])\s{{0,4}}(?:\\?%|(?:(?:{_UNIT_WORDS})\s{{0,2}}(?:\^\{{?[23]\}}?)?\s{{0,2}}){{1,3}}"
    rf"(?:(?:per|/)\s{{0,2}}(?:{_UNIT_WORDS}))?)\.?$",
    re.IGNORECASE,
)
_PLAIN_NUMBER = re.compile(
    r"[-+]?\s?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s?/\s?\d+)?"
    r"|[-+]?\s?(?:\d+\s?)?\\frac\{\d+\}\{\d+\}|[-+]?\d+\s\d+/\d+"
)
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[\s-][^\W\d_]+)*")
_FUNCTIONS = r"sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|exp|min|max"


def plain_formula(answer: str) -> str:
    r"""The normal writing of an answer: numbers exact, LaTeX without marks of layout.

    "\dfrac12", "1/2" and "0.50" give "0.5"; "\left( 3, \frac{\pi}{2} \right)" gives
    "(3,\frac{\pi}{2})"; "\text{Evelyn}" gives "evelyn". What is left apart may still be equal.
    """
    text = _stripped(answer[: MAX_CHARS + 1])
    words = _TEXT.sub(r"\1", text).strip()
    lettered = re.fullmatch(r"\(?([A-Z])\)?\.?", words)
    if lettered:
        return lettered[1]
    if _WORDS.fullmatch(words) and not re.fullmatch(_FUNCTIONS, words):
        return re.sub(r"\s+", " ", words).lower()
    # a text after a value is its unit: "5 \text{ cm}^2", "16\,\mathrm{ft}"
    text = re.sub(rf"(?<=[\d}})])\s*{_TEXT.pattern}(?:\s?\^\s?\{{?[23]\}}?)?\.?$", "", text).strip()
    text = _UNITS.sub("", text).strip()
    assigned = re.fullmatch(r"\\?[a-zA-Z]{1,6}\s?=\s?([^=,;]+)", text)
    number = assigned[1].strip() if assigned else text
    if _PLAIN_NUMBER.fullmatch(number):
        value = parse(number)
        if value is not None:
            return decimal_text(value)
    text = re.sub(r"\s+", " ", _TEXT.sub(r"\\text{\1}", text))
    text = re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", text)
    return text.strip(" .") or undecorated(answer)


def to_latex(text: str) -> str:
    """A formula in plain text, or in LaTeX, as LaTeX: sqrt(2) becomes \\sqrt{2}, x**2 x^{2}."""
    text = text.replace("**", "^").replace("<=", r"\le ").replace(">=", r"\ge ")
    text = re.sub(r"(?<![\\A-Za-z])(pi|infty|infinity|oo|inf)(?![A-Za-z])", _greek, text)
    text = re.sub(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?=[\s(^])", r"\\\1", text)
    text = re.sub(r"√\s?(\d+|[a-z])", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![A-Za-z])\\?(sqrt)\s?(?=\()|√(?=\()", r"\\sqrt", text)
    for mark in ("\\sqrt(", "^("):
        text = _parenthesised(text, mark)
    text = re.sub(r"(?<=[\w)}])\s?\*\s?(?=[\w(\\])", r" \\cdot ", text)
    return re.sub(r"(?<=[A-Za-z])\^(-?\d{2,})", r"^{\1}", text)


def is_number(text: str) -> bool:
    """Is `text`, a normal writing, a number's?"""
    return bool(re.fullmatch(r"-?\d+(?:\.\d+|/\d+)?", text))


def is_words(text: str) -> bool:
    """Is `text`, a normal writing, made of words and no formula?"""
    return bool(_WORDS.fullmatch(text))


def depth(text: str) -> int:
    """How deep brackets of any kind nest in `text`; unmatched openings count."""
    level = deepest = 0
    for char in text:
        level += (char in "({[") - (char in ")}]")
        deepest = max(deepest, level)
    return deepest


def _stripped(text: str) -> str:
    text = undecorated(text)
    inside = boxes(text)
    if inside and inside[-1].end == len(text) and inside[0].start == 0:
        text = inside[0].text
    text = text.translate(_TRANSLATED)
    text = re.sub(r"\\[()\[\]]|(?<!\\)\$", "", text).strip()
    text = re.sub(r"\\\$|(?<=\d)(?:\{,\}|\\!,?|,\\!|\\,)(?=\d{3}(?!\d))", _group, text)
    text = re.sub(r"\^\s?(?:\{\s?\\circ\s?\}|\\circ)", "", text)
    text = _DELIMITERS.sub("", _SPACING.sub(" ", text))
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
    text = re.sub(r"\\frac\s?(\d)\s?(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s?(\d)\s?\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\sqrt\s?(\d)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\(?:mathbf|mathrm)\s?\{(\d+)\}", r"\1", text)
    text = re.sub(r"^[a-z]\s?\\in(?![a-zA-Z])\s?", "", text.strip())
    return text.rstrip(".;").strip()


def _group(match: re.Match) -> str:
    return "" if match[0] == r"\$" else ","


def _greek(match: re.Match) -> str:
    return r"\pi " if match[1] == "pi" else r"\infty "


def _parenthesised(text: str, mark: str) -> str:
    """Replaces `mark` ... `)` by the same with braces, brackets matched."""
    while mark in text:
        start = text.index(mark) + len(mark) - 1
        level = 0
        for end in range(start, len(text)):
            level += (text[end] == "(") - (text[end] == ")")
            if level == 0:
                break
        else:
            return text
        text = f"{text[:start]}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
    return text

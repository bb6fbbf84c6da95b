"""How replies write the letter of an option: the patterns that `choices` reads them by."""

import re

_OPENING = r"[\s*_`\"'“”(\[{$<]{0,12}(?:\\[(\[]\s{0,4})?"
_COMMAND = r"(?:\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|bf|rm|mbox)\s?\{?)?"
_HEDGE = (
    r"(?:(?:therefore|thus|hence|then|clearly|indeed|simply|just|likely|most likely|probably|"
    r"definitely|certainly|obviously|actually|still|also|indicated by|given by|either|both"
    r"|between)[\s,:]{1,3})?"
)
_NAMED = r"(?:(?:the )?(?:option|choice|letter|answer)\s{1,3}[:]?)?"
LEAD = re.compile(
    rf"{_OPENING}{_HEDGE}{_OPENING}{_COMMAND}{_OPENING}{_NAMED}{_OPENING}{_COMMAND}{_OPENING}"
    r"(?P<letter>[A-Za-z])(?![\w+#^]|['’][A-Za-z]|-\w|\.[A-Za-z]\.|\s{0,2}[=<≈])"
    r"(?P<after>.*)",
    re.IGNORECASE | re.DOTALL,
)
DIGIT_LEAD = re.compile(
    rf"{_OPENING}{_HEDGE}{_OPENING}{_COMMAND}{_OPENING}(?P<named>{_NAMED}){_OPENING}"
    r"(?P<digit>[1-9])(?![\w%]|[.,/:-]\d)(?P<after>.*)",
    re.IGNORECASE | re.DOTALL,
)
# "I think ...", "A common ...": a pronoun or an article, unless one of these words follows.
SENTENCE_GOES_ON = re.compile(
    r"\s+(?!(?:because|since|as|and|or|for|with|which|given|is|due|where|by|but|not)\b)[a-z]"
)
# "B or C", "A, B and D", "A / B", "B, maybe C": several answers are no single choice.
MORE_LETTERS = re.compile(
    r"(?:[)\]}*_\s$\\.]{0,8}(?:,\s{0,3}(?:or\b|and\b)?|;|/|&|\+|\(?(?:or|and)\b|oder\b|und\b|ou\b"
    r"|et\b|y\b|o\b)"
    r"\s{0,3}(?:(?:maybe|perhaps|possibly|even|also|probably|else|both|then)\s{1,3})?"
    r"(?:(?:option|choice|answer|letter)\s{1,3})?(?:\\\w{1,8}\{)?[(\[*_${\\]{0,6}"
    r"(?P<other>[A-Za-z])(?![\w'’-]))+[)\]}*_$\\]{0,8}\s{0,3}(?:[.!?,\n)]|$|(?:are|is|both|seem))"
)
BARE_END = re.compile(r"[\s)\]}>*_`\"'”$.,:;!\\]*(?:$|\n|[.:;,)]\s)")
# "B is the correct answer", "(B) is right"
TOLD = re.compile(
    r"(?P<before>(?:\b(?:nor|neither|either|not|or|and|whether|if|both|statements?)\b|,)\s{1,3})?"
    r"(?<![\w'’-])(?P<told>(?:(?:option|choice|letter|answer)\s{1,3})?[(\[*_\"'`]{0,4}[A-Z]"
    r"[)\]*_\"'`.]{0,4})\s{1,2}(?:is|would be|must be|should be|has to be)\s{1,2}"
    r"(?:(?:therefore|thus|clearly|definitely|indeed|probably|likely|most likely)\s{1,2})?"
    r"(?:(?:the|our|my)\s{1,2}(?:(?:only|single|most)\s{1,2})?"
    r"(?:(?:final|correct|right|best|appropriate|suitable|likely)\s{1,2}(?:answer|option|choice|one)"
    r"|answer|choice)\b|(?:correct|right)(?![-\w]|\s(?:if|when|about|that|in|only|but)\b))",
    re.IGNORECASE,
)
# "I choose B", "my pick is B", "I would go with (B)"; "Answer (B)", "Answer - B", "I answer B."
PICKED = re.compile(
    r"\b(?P<pick>(?:choose|pick|select|go with|going with|opt for|vote for|settle on|chose|picked"
    r"|selected|it (?:must|has to) be|my (?:choice|pick|guess|selection|option) (?:is|would be):?"
    r"|(?:correct|right|best|final) (?:one|letter|selection) (?:is|would be):?"
    r"|(?:final|correct|right|best|my)?\s?(?:choice|option|selection|letter):)"
    r"\s{1,3}(?=(?:(?:the )?(?:option|choice|letter|answer)\s)?[(\[*_$\\\"'`]{0,6}"
    r"(?:\w{4,6}\{)?[(]?[A-Za-z](?![\w'’])))"
    r"|\banswer(?:\s?,?\s{1,2}|\s?[-–—]\s?)(?P<bracket>\([A-Z]\)|[A-Z](?=\.?\s{0,3}(?:\n|$)))",
    re.IGNORECASE,
)
# Plain searches that come first, since both patterns are tried at every place of a reply.
TOLD_GATE = re.compile(r"[A-Z][)\]*_\"'`.]{0,4}\s{1,2}(?:is|would|must|should|has)\s")
PICKED_GATE = (
    "answer", "choose", "pick", "select", "chose", "go with", "going with", "opt for", "vote for",
    "settle on", "choice:", "option:", "letter:", "letter is", "letter would", "one is",
    "one would", "it must be", "it has to be",
    "choice is", "choice would", "option is", "option would",
    "guess",
)  # fmt: skip
# A line that is nothing but a letter, or names it as the conclusion: "So it is (B)."
LETTER_LINE = re.compile(
    r"(?i:(?:(?:so|therefore|thus|hence|finally|in conclusion)\b[,:]?\s{0,3})?"
    r"(?:it(?:['’]s|\s+is|\s+must be)\s{1,3})?(?:the\s)?(?:(?:option|choice|letter)\s{0,3}:?)?)"
    r"[\s*_`\"'“”(\[{$>#-]{0,12}(?:\\[(\[])?(?:\\\w{2,8}\{)?[(]?([A-Z])[)]?\}?"
    r"[\s*_`\"'“”)\]}$.!\\]{0,12}"
)
LABELLED_LINE = re.compile(r"[*_(\[>\s]{0,6}([A-Z])[*_)\].:]{1,4}\s{1,4}(.{1,2000})", re.DOTALL)

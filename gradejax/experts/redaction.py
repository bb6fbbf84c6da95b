"""Taking a key out of text, in whatever form a server or an exception says it back."""

from __future__ import annotations

import re
from collections.abc import Callable

SHOWN_KEY = "[key]"
# Text quoted inside quoted text has its escapes escaped again. Bounded, so that a body of nothing
# but backslashes costs no quadratic search.
_ESCAPED = r"\\{1,8}"
_PERCENT = "%(?:25){0,4}"


def redactor(key: str) -> Callable[[str], str]:
    r"""A function that replaces `key` by "[key]".

    It is found as it is, with characters escaped as JSON and Python do (\/, \u0073, \x73), as a URL
    does (%2F, %2f, %252F) and as HTML does (&#47;, &#x2f;), in any mixture of these. Text that is
    to be cut must be redacted before: a part of a key is not found.

    Args:
      key: printable ASCII; "" for no key, where nothing is replaced.
    """
    if not key:
        return lambda text: text
    escaped = re.compile("".join(_forms(c) for c in key))

    def redact(text: str) -> str:
        text = text.replace(key, SHOWN_KEY)
        # Without any of these nothing is escaped, and most text has none.
        return escaped.sub(SHOWN_KEY, text) if any(c in text for c in "\\%&") else text

    return redact


def _forms(character: str) -> str:
    code = ord(character)
    digits = "".join(d if d.isdigit() else f"[{d}{d.upper()}]" for d in f"{code:02x}")
    names = {"&": "|&amp;", "<": "|&lt;", ">": "|&gt;", '"': "|&quot;", "'": "|&apos;"}
    return (rf"(?:(?:{_ESCAPED})?{re.escape(character)}|{_ESCAPED}(?:u00|x){digits}"
            rf"|{_PERCENT}{digits}|&#0*{code};|&#[xX]0*{digits};{names.get(character, '')})")

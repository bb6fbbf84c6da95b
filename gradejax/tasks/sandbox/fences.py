"""Finds the fenced blocks of a reply. Standard library only, as find.py."""

import ast
import re
import textwrap

_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_INLINE_FENCE = re.compile(r"```(?:python3?|py)?[ \t]+(.+?)```", re.DOTALL)
_PYTHON = ("", "python", "python3", "py", "py3", "ipython", "python-repl", "pycon")
_QUOTE = re.compile(r"""\\.|\"{3}|'{3}|["'#]""")
_REST = {quote: re.compile(rf"(?:\\.|[^\\{quote}])*{quote}") for quote in "\"'"}
# How many lines, and characters of code, may be tried as fences within a docstring.
_MAX_INNER, _MAX_TRIED = 10, 100_000


def fenced(reply: str) -> tuple[list[str], str]:
    """Contents of the Python fences (the last may be unclosed), and the text before the first."""
    blocks: list[tuple[str, str]] = []
    lines, fence, language, before, quote = [], None, "", None, None
    every, inner, number = reply.split("\n"), _MAX_INNER, -1
    while (number := number + 1) < len(every):
        line = every[number]
        match = _FENCE.match(line)
        if fence is None and match:
            fence, language, lines = match[1], (match[2].split() or [""])[0].lower(), []
            quote = None
            if before is None:
                before = "\n".join(every[:number])
        elif fence and match and match[1].startswith(fence) and not match[2].strip():
            end = None
            if quote and inner:
                inner -= 1
                end = _end_of_docstring(lines, every, number, fence, quote)
            if end is not None:
                lines += every[number:end]
                number = end - 1  # the string has ended there, and so may the block
                quote = None
                continue
            blocks.append((language, "\n".join(lines)))
            fence = None
        elif fence:
            lines.append(line)
            quote = _open_quote(line, quote)
    if fence and "".join(lines).strip():
        blocks.append((language, "\n".join(lines)))
    if not blocks:
        blocks = [("python", match[1]) for match in _INLINE_FENCE.finditer(reply)]
    python = [code for language, code in blocks if language.strip("{}.") in _PYTHON]
    return [_without_prompts(code) for code in python or [code for _, code in blocks]], before or ""


def _end_of_docstring(lines, every, number, fence, quote) -> int | None:
    """The line where a block ends whose string, open in line `number`, holds the fence there.

    None where that makes no Python: the string was never closed, and the fence does end the block.
    """
    size, closing = sum(map(len, lines)), None
    for end in range(number, len(every)):
        match = _FENCE.match(every[end])
        if not quote and match and match[1].startswith(fence) and not match[2].strip():
            break
        quote = _open_quote(every[end], quote)
        closing = end if closing is None and not quote else closing
        size += len(every[end])
        if size > _MAX_TRIED:
            return None
    else:
        end = len(every)
    if quote or closing is None:
        return None
    try:
        ast.parse(textwrap.dedent("\n".join([*lines, *every[number:end]])))
    except SyntaxError as error:
        # a block that is not closed may end in prose, after a line of code below the string
        wrong = (error.lineno or 1) - 1 - len(lines) + number
        return end if end == len(every) and wrong > closing + 1 else None
    except (ValueError, RecursionError, MemoryError):
        return None
    return end


def _open_quote(line: str, quote: str | None) -> str | None:
    """The triple quote of a string that is open after `line`, given the one open before."""
    place = 0
    while match := _QUOTE.search(line, place):
        found, place = match[0], match.end()
        if quote:
            quote = None if found == quote else quote
        elif len(found) == 3:
            quote = found
        elif found == "#":
            break
        elif found in _REST:
            rest = _REST[found].match(line, place)
            if not rest:
                break
            place = rest.end()
    return quote


def _without_prompts(code: str) -> str:
    """The block without a common margin; of a console session, what was typed."""
    lines = textwrap.dedent(code).split("\n")
    if not lines or not next((line for line in lines if line.strip()), "").startswith(">>> "):
        # a body keeps its margin: it is what tells it from a program
        body = code[:1] in " \t" and not _parses("\n".join(lines))
        return code if body else "\n".join(lines)
    return "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ", "...")))


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True

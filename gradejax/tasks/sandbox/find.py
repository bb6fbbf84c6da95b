"""Finds the program in a reply: fenced, in several fences, unclosed, bare, or only a body.

A reply is read as a person would: the last code that defines the function asked for is the answer;
what it needs from other blocks is taken from there; a body alone continues the prompt. Whatever
cannot be parsed at the end (prose, a cut line) is left out. Standard library only: the supervisor
loads this file without gradejax, in a process that a hostile reply may bring down.
"""

import ast
import builtins
import re
import textwrap
from collections.abc import Iterator

if __package__:
    from gradejax.tasks.sandbox.fences import fenced
else:  # in the supervisor
    from fences import fenced

# The whole reply is searched; these bound the work. Of a longer reply the end is read, of longer
# code in fences the last, and of a longer text without fences what lies around the definition.
MAX_CHARACTERS, _MAX_FENCED, _STRETCH = 8_000_000, 400_000, 50_000
_MAX_WINDOWS, _MAX_BODIES = 4, 100
_CODE_LINE = re.compile(r"^(?:from\s+[\w.]+\s+import\b|import\s+\w|(?:async\s+)?def\s|class\s|@\w"
                        r"|try\s*:|if\s[^\n]*:[ \t]*(?:#|$)"
                        r"|[A-Za-z_]\w*\s*(?::[^=\n]+)?=[^=])")  # fmt: skip
_INVISIBLE = re.compile("^[\ufeff\u200b\u200e\u200f\u2060]+", re.MULTILINE)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAMING = (*_DEFINITIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


def find_code(reply: str, entry_point: str, prompt: str = "") -> str | None:
    """Returns the program in `reply`, None when there is none.

    Args:
      reply: the visible reply (thinking blocks already taken out).
      entry_point: name of the function asked for. Code that defines another function only is
        returned all the same: it is an answer, and a wrong one.
      prompt: code that ends in the signature and docstring of the function, as HumanEval's; needed
        to read a body.
    """
    reply = reply[-MAX_CHARACTERS:].replace("\r\n", "\n").replace("\r", "\n")
    reply = _INVISIBLE.sub("", reply.replace("\x00", ""))
    blocks, before = fenced(reply)
    blocks = _last(blocks, _MAX_FENCED)
    if not blocks:
        first = next((line for line in reply.splitlines() if line.strip()), "")
        body = _continued(prompt, reply, entry_point) if first[:1] in " \t" else None
        body = body or _bare(reply, entry_point) or _continued(prompt, reply, entry_point)
        return body or (reply if _is_program(reply) else None)
    tries = _tries(reply)
    parsed = [code for block in blocks if (code := _parsable(block, tries=tries))]
    complete = [code for code in parsed if _defines(code, entry_point)]
    # a reply may go on with a stub ("def f(x): ...") to show how the function is called
    written = [code for code in complete if not _is_stub(code, entry_point)]
    if written or complete:
        chosen = _without_stubs((written or complete)[-1], entry_point)
        return _with_missing(chosen, parsed, prompt, entry_point)
    # code without a fence of its own, with fences in its docstring or below it
    whole = _bare(reply, entry_point)
    if whole:
        return whole
    for block in blocks[: -_MAX_BODIES - 1 : -1]:
        body = _continued(prompt, block, entry_point)
        if body:
            return body
    # a reply that began inside a fence which the prompt had opened
    begun = _continued(prompt, before, entry_point)
    return begun or (max(parsed, key=len) if parsed else None)


def _last(blocks: list[str], characters: int) -> list[str]:
    """The last blocks that have so many characters together; the last one in any case."""
    kept: list[str] = []
    for block in reversed(blocks):
        characters -= len(block)
        if kept and characters < 0:
            break
        kept.append(block[-_MAX_FENCED:])
    return kept[::-1]


def preamble(prompt: str, entry_point: str) -> str:
    """The prompt without the function asked for: its imports, constants and helper functions.

    Raises SyntaxError when the prompt, given a body, is no Python.
    """
    if not prompt.strip():
        return ""
    try:
        tree = ast.parse(prompt)
    except SyntaxError:  # a signature without docstring
        tree = ast.parse(prompt.rstrip() + "\n    pass\n")
    tree.body = [node for node in tree.body if entry_point not in _names_of(node)]
    return ast.unparse(tree)


def free_names(tree: ast.AST) -> set[str]:
    """Names that code reads and neither defines anywhere nor finds among the built-in ones."""
    read, bound = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, _NAMING):
            bound.add(node.name)  # None where there is none
    return read - bound - set(dir(builtins)) - {"__name__", "__file__"}


def _tries(text: str) -> int:
    """How often `text` may be parsed: a reply must not buy more than seconds of work."""
    return min(40, max(4, 200_000 // (len(text) + 1)))


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parsable(text: str, at_least: int = 1, tries: int = 40) -> str | None:
    """The longest head of `text` found to parse, None when under `at_least` lines would be left."""
    lines = text.split("\n")
    for _ in range(min(tries, _tries(text))):
        try:
            tree = ast.parse("\n".join(lines))
        except SyntaxError as error:
            cut = min((error.lineno or 1) - 1, len(lines) - 1)
        except (ValueError, RecursionError, MemoryError):
            return None
        else:
            last = tree.body[-1] if tree.body else None
            if not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Name)):
                break
            cut = last.lineno - 1  # a word of prose under the code
        lines = lines[:cut]
        if len(lines) < at_least:
            return None
    else:
        return None
    return "\n".join(lines) if "".join(lines).strip() else None


def _names_of(node: ast.stmt) -> set[str]:
    """Names that a top-level statement defines; of `if` and `try`, what they define inside."""
    if isinstance(node, (*_DEFINITIONS, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {name.id for target in targets for name in ast.walk(target)
                if isinstance(name, ast.Name)}  # fmt: skip
    # a result that is kept inside (`if x: n = f(x)`) defines nothing
    return {name for inner in _inside(node) if not isinstance(inner, (ast.Assign, ast.AnnAssign))
            or isinstance(inner.value, ast.Lambda) for name in _names_of(inner)}  # fmt: skip


def _inside(node: ast.stmt) -> list[ast.stmt]:
    """Statements of a top-level `if` or `try`, at any depth of these; none of a main guard's."""
    out, waiting = [], [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If):
            guard = any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))
            parts = [] if guard else [*node.body, *node.orelse]
        elif isinstance(node, (ast.Try, getattr(ast, "TryStar", ast.Try))):
            caught = [inner for handler in node.handlers for inner in handler.body]
            parts = [*node.body, *caught, *node.orelse, *node.finalbody]
        else:
            continue
        out += [part for part in parts if not isinstance(part, (ast.If, ast.Try))]
        waiting += parts
    return out


def _defines(code: str, name: str) -> bool:
    tree = _tree(code)
    return tree is not None and any(name in _names_of(node) for node in tree.body)


def _is_stub(code: str, name: str, raising: bool = True) -> bool:
    """Does function `name` do nothing in `code`, by the last that is not a stub (or the last)?"""
    nodes = [node for node in ast.parse(code).body if name in _names_of(node)]
    return all(_stubs(node, name, raising) for node in nodes)


def _stubs(node: ast.stmt, name: str, raising: bool = True) -> bool:
    """Are all definitions of `name` in a statement docstring, `pass`, `...` or (`raising`) a raise
    of NotImplementedError?"""
    functions = [n for n in (node, *_inside(node)) if name in _names_of(n)
                 and not isinstance(n, (ast.If, ast.Try))]  # fmt: skip
    return all(
        isinstance(function, _DEFINITIONS)
        and all(
            isinstance(part, ast.Pass)
            or (isinstance(part, ast.Expr) and isinstance(part.value, (ast.Constant, ast.Name)))
            or (raising and _says_not_implemented(part))
            for part in function.body
        )
        for function in functions
    )


def _says_not_implemented(node: ast.stmt) -> bool:
    raised = node.exc if isinstance(node, ast.Raise) else None
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _without_stubs(code: str, name: str) -> str:
    """`code` without the stubs of `name` that follow a full definition and would replace it."""
    tree = ast.parse(code)
    full = [i for i, node in enumerate(tree.body)
            if name in _names_of(node) and not _stubs(node, name)]  # fmt: skip
    if not full:
        return code
    kept = [node for i, node in enumerate(tree.body)
            if i < full[-1] or name not in _names_of(node) or not _stubs(node, name)]  # fmt: skip
    if len(kept) == len(tree.body):
        return code
    tree.body = kept
    return ast.unparse(tree)


def _is_program(text: str) -> bool:
    """Is `text` as a whole code that does something? (A word, alone, is an expression.)"""
    tree = _tree(text) if len(text) <= _MAX_FENCED else None
    return tree is not None and not all(isinstance(n, (ast.Expr, ast.Pass)) for n in tree.body)


def _bare(text: str, entry_point: str) -> str | None:
    """The last stretch of code in prose that defines the function, one that is no stub if any."""
    found = []
    for window in _windows(text, entry_point):
        code = _stretch(window, entry_point)
        if code and not _is_stub(code, entry_point):
            return _without_stubs(code, entry_point)
        found += [code] if code else []
    return found[0] if found else None


def _windows(text: str, entry_point: str) -> Iterator[str]:
    """What to search for a definition: a short text itself, parts of a long one, the last first."""
    if len(text) <= _STRETCH:
        yield text
        return
    name = re.escape(entry_point)
    defined = re.compile(rf"^[ \t]*(?:(?:async\s+)?(?:def|class)\s+{name}\b|{name}\s*[:=])", re.M)
    first = len(text)
    for place in [m.start() for m in defined.finditer(text)][: -_MAX_WINDOWS - 1 : -1]:
        if place >= first:
            continue  # in the window before
        end = text.rfind("\n", place, place + _STRETCH // 2)
        end = len(text) if len(text) <= place + _STRETCH // 2 or end < 0 else end
        first = max(0, place - _STRETCH // 2)
        first = text.find("\n", first, place) + 1 if first else 0
        yield text[first:end]
        if text[place] not in " \t":  # where lines of prose before it took up all tries
            yield text[place:end]


def _stretch(text: str, entry_point: str) -> str | None:
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if _CODE_LINE.match(line)]
    found, past = [], 0
    tries = _tries(text) // 2
    for start in starts:
        # within a stretch that was read to its end a later start reads no further
        if start < past or not tries:
            continue
        tries -= 1
        code = _parsable("\n".join(lines[start:]))
        past = start + (code or "").count("\n") + 1
        if code and _defines(code, entry_point):
            found.append(code)
    written = [code for code in found if not _is_stub(code, entry_point)]
    return (written or found or [None])[-1]


def _continued(prompt: str, text: str, entry_point: str) -> str | None:
    """The prompt with `text` as the body of its function, None when that gives no body."""
    if not prompt.strip() or not text.strip():
        return None
    text = text[:_STRETCH].strip("\n")
    head = prompt if prompt.endswith("\n") else prompt + "\n"
    own = head.count("\n")
    bodies = [text, "    " + text.lstrip(), textwrap.indent(textwrap.dedent(text), "    ")]
    for body in bodies:
        code = _parsable(head + body, own + 1)
        if code and _defines(code, entry_point) and not _is_stub(code, entry_point, False):
            try:
                compile(code, "<reply>", "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue  # a `return` that the margin put outside the function
            return code
    return None


def _with_missing(code: str, parsed: list[str], prompt: str, entry_point: str) -> str:
    """`code` after the definitions it lacks that other blocks hold (nearest before it first)."""
    try:
        given = set().union(*map(_names_of, ast.parse(preamble(prompt, entry_point)).body), set())
    except SyntaxError:
        given = set()
    others = [tree.body for text in parsed if text != code and (tree := _tree(text))]
    parts = [code]
    for _ in range(10):  # what was added may lack something itself
        lacking = free_names(ast.parse("\n".join(parts))) - given
        nodes = [node for body in reversed(others) for node in body if _names_of(node) & lacking]
        if not nodes:
            break
        parts.insert(0, ast.unparse(nodes[0]))
    return "\n".join(parts)

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

# What lies beyond is not read.
MAX_CHARACTERS = 50_000
_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_INLINE_FENCE = re.compile(r"```(?:python3?|py)?[ \t]+(.+?)```", re.DOTALL)
_PYTHON = ("", "python", "python3", "py", "py3", "ipython", "python-repl", "pycon")
_CODE_LINE = re.compile(r"^(?:from\s+[\w.]+\s+import\b|import\s+\w|(?:async\s+)?def\s|class\s|@\w"
                        r"|[A-Za-z_]\w*\s*(?::[^=\n]+)?=[^=])")  # fmt: skip
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
    reply = reply[:MAX_CHARACTERS].replace("\r\n", "\n").replace("\x00", "")
    blocks, before = _fenced(reply)
    if not blocks:
        first = next((line for line in reply.splitlines() if line.strip()), "")
        body = _continued(prompt, reply, entry_point) if first[:1] in " \t" else None
        body = body or _bare(reply, entry_point) or _continued(prompt, reply, entry_point)
        return body or (reply if _is_program(reply) else None)
    parsed = [code for block in blocks if (code := _parsable(block))]
    complete = [code for code in parsed if _defines(code, entry_point)]
    # a reply may go on with a stub ("def f(x): ...") to show how the function is called
    written = [code for code in complete if not _is_stub(code, entry_point)]
    if written or complete:
        chosen = (written or complete)[-1]
        return _with_missing(chosen, blocks, prompt, entry_point)
    for block in reversed(blocks):
        body = _continued(prompt, block, entry_point)
        if body:
            return body
    # a reply that began inside a fence which the prompt had opened
    begun = _bare(before, entry_point) or _continued(prompt, before, entry_point)
    return begun or (max(parsed, key=len) if parsed else None)


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


def _fenced(reply: str) -> tuple[list[str], str]:
    """Contents of the Python fences (the last may be unclosed), and the text before the first."""
    blocks: list[tuple[str, str]] = []
    lines, fence, language, before = [], None, "", None
    for number, line in enumerate(reply.split("\n")):
        match = _FENCE.match(line)
        if fence is None and match:
            fence, language, lines = match[1], (match[2].split() or [""])[0].lower(), []
            if before is None:
                before = "\n".join(reply.split("\n")[:number])
        elif fence and match and match[1].startswith(fence) and not match[2].strip():
            blocks.append((language, "\n".join(lines)))
            fence = None
        elif fence:
            lines.append(line)
    if fence and "".join(lines).strip():
        blocks.append((language, "\n".join(lines)))
    if not blocks:
        blocks = [("python", match[1]) for match in _INLINE_FENCE.finditer(reply)]
    python = [code for language, code in blocks if language.strip("{}.") in _PYTHON]
    return [_without_prompts(code) for code in python or [code for _, code in blocks]], before or ""


def _without_prompts(code: str) -> str:
    """The block without a common margin; of a console session, what was typed."""
    lines = textwrap.dedent(code).split("\n")
    if not lines or not next((line for line in lines if line.strip()), "").startswith(">>> "):
        # a body keeps its margin: it is what tells it from a program
        return code if code[:1] in " \t" and not _tree(textwrap.dedent(code)) else "\n".join(lines)
    return "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ", "...")))


def _tries(text: str) -> int:
    """How often `text` may be parsed: a reply must not buy more than seconds of work."""
    return min(40, max(4, 200_000 // (len(text) + 1)))


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parsable(text: str, at_least: int = 1) -> str | None:
    """The longest head of `text` found to parse, None when under `at_least` lines would be left."""
    lines = text.split("\n")
    for _ in range(_tries(text)):
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
    """Names that a top-level statement defines."""
    if isinstance(node, (*_DEFINITIONS, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {name.id for target in targets for name in ast.walk(target)
                if isinstance(name, ast.Name)}  # fmt: skip
    return set()


def _defines(code: str, name: str) -> bool:
    tree = _tree(code)
    return tree is not None and any(name in _names_of(node) for node in tree.body)


def _is_stub(code: str, name: str) -> bool:
    """Is the last definition of function `name` nothing but a docstring, `pass` or `...`?"""
    nodes = [node for node in ast.parse(code).body if name in _names_of(node)]
    if not nodes or not isinstance(nodes[-1], _DEFINITIONS):
        return not nodes
    return all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, (ast.Constant, ast.Name)))
        for node in nodes[-1].body
    )


def _is_program(text: str) -> bool:
    """Is `text` as a whole code that does something? (A word, alone, is an expression.)"""
    tree = _tree(text)
    return tree is not None and not all(isinstance(n, (ast.Expr, ast.Pass)) for n in tree.body)


def _bare(text: str, entry_point: str) -> str | None:
    """The last stretch of code in prose that defines the function."""
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
    text = text.strip("\n")
    head = prompt if prompt.endswith("\n") else prompt + "\n"
    own = head.count("\n")
    bodies = [text, "    " + text.lstrip(), textwrap.indent(textwrap.dedent(text), "    ")]
    for body in bodies:
        code = _parsable(head + body, own + 1)
        if code and _defines(code, entry_point) and not _is_stub(code, entry_point):
            try:
                compile(code, "<reply>", "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue  # a `return` that the margin put outside the function
            return code
    return None


def _with_missing(code: str, blocks: list[str], prompt: str, entry_point: str) -> str:
    """`code` after the definitions it lacks that other blocks hold (nearest before it first)."""
    try:
        given = set().union(*map(_names_of, ast.parse(preamble(prompt, entry_point)).body), set())
    except SyntaxError:
        given = set()
    others = [tree.body for block in blocks if (text := _parsable(block)) and text != code
              and (tree := _tree(text))]  # fmt: skip
    parts = [code]
    for _ in range(10):  # what was added may lack something itself
        lacking = free_names(ast.parse("\n".join(parts))) - given
        nodes = [node for body in reversed(others) for node in body if _names_of(node) & lacking]
        if not nodes:
            break
        parts.insert(0, ast.unparse(nodes[0]))
    return "\n".join(parts)

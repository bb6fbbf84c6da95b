"""Code as people write it in replies."""

import time

import pytest

from gradejax.tasks.sandbox.find import find_code, preamble

PROMPT = '''from typing import List


def total(xs: List[int]) -> int:
    """ The sum of xs.
    >>> total([1])
    1
    """
'''
WHOLE = "def total(xs):\n    return sum(xs)"
WITH_HELPER = "def plus(a, b):\n    return a + b\n\ndef total(xs):\n    return plus(xs[0], xs[1])"
INDENTED = "    def total(xs):\n        return sum(xs)"
FENCED_DOC = '''def total(xs):
    """Adds.

    ```
    >>> total([1, 2])
    3
    ```
    """
    return sum(xs)'''


def run(reply, prompt=PROMPT, values=((3, 4),)):
    code = find_code(reply, "total", prompt)
    if code is None:
        return None
    namespace = {"__name__": "solution"}
    exec(preamble(prompt, "total"), namespace)
    exec(code, namespace)
    return [namespace["total"](list(value)) for value in values]


REPLIES = {
    "bare": WHOLE,
    "fenced": f"Here you are:\n\n```python\n{WHOLE}\n```\nIt adds.",
    "fenced, no language": f"```\n{WHOLE}\n```",
    "fenced, other spelling": f"~~~ Python3\n{WHOLE}\n~~~",
    "fenced in a list": "1. Do this:\n\n   ```python\n" + WHOLE.replace("def", "   def").replace(
        "    return", "       return") + "\n   ```\n",
    "unclosed": f"Sure!\n```python\n{WHOLE}\n",
    "unclosed with prose": f"```python\n{WHOLE}\n\nThis function adds all the numbers.",
    "fence opened by the prompt": f"{WHOLE}\n```\nThis is the solution.",
    "one line": "Use `total`: ```python def total(xs): return sum(xs)``` and be happy",
    "prose around, no fence": f"The idea is simple.\n\n{WHOLE}\n\nIsn't that linear time?",
    "one word of prose below": f"{WHOLE}\n\nDone",
    "with its imports": f"from typing import List\nimport math\n\n{WHOLE}",
    "uses the prompt's imports": "```python\ndef total(xs: List[int]):\n    return sum(xs)\n```",
    "with helper": f"```python\n{WITH_HELPER}\n```",
    "helper in a block of its own": "A helper:\n```python\ndef plus(a, b):\n    return a + b\n"
    "```\nand then\n```python\ndef total(xs):\n    return plus(xs[0], xs[1])\n```",
    "helper in a later block": "```python\ndef total(xs):\n    return plus(xs[0], xs[1])\n"
    "```\nwith\n```python\ndef plus(a, b):\n    return a + b\n```",
    "import in an earlier block": "```python\nimport functools as f\n```\n"
    "```python\ndef total(xs):\n    return f.reduce(int.__add__, xs)\n```",
    "corrected": "```python\ndef total(xs):\n    return 0\n```\nThat is wrong. Better:\n"
    f"```python\n{WHOLE}\n```",
    "corrected, bare": f"def total(xs):\n    return 0\n\nNo, wait.\n\n{WHOLE}\n",
    "usage after it": f"```python\n{WHOLE}\n```\nUse it so:\n```python\nprint(total([1, 2]))\n```",
    "shell and text blocks": f"```bash\npip install x\n```\n```python\n{WHOLE}\n```\n"
    "```text\n7\n```",
    "stub after it": f"```python\n{WHOLE}\n```\nThe signature:\n"
    "```python\ndef total(xs):\n    ...\n```",
    "body": "    return sum(xs)\n",
    "body, first margin lost": "n = 0\n    for x in xs:\n        n += x\n    return n",
    "body, all margin lost": "result = 0\nfor x in xs:\n    result += x\nreturn result",
    "body in a fence": "```python\n    return sum(xs)\n```",
    "body in a fence, no margin": "Fill in:\n```python\nreturn sum(xs)\n```",
    "body that runs on": "    return sum(xs)\n\n\ndef other(x):\n    retur",
    "body with prose below": "    return sum(xs)\n\nThis returns the sum of them.",
    "prompt repeated": PROMPT + "    return sum(xs)\n",
    "console": "```python\n>>> def total(xs):\n...     return sum(xs)\n...\n>>> total([1])\n1\n```",
    "windows line ends": f"```python\r\n{WHOLE}\r\n```\r\n".replace("\n    ", "\r\n    "),
    "demonstration guarded": f"{WHOLE}\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n",
    "lambda": "```python\ntotal = lambda xs: sum(xs)\n```",
    "long prose before a fence": "All of it is known.\n" * 5000 + f"```python\n{WHOLE}\n```",
    "long prose before bare code": "All of it is known.\n" * 5000 + f"\n{WITH_HELPER}\n",
    "long prose around bare code": "x = 1 he said\n" * 9000 + f"\n{WHOLE}\n\n"
    + "That is it.\n" * 9000,
    "long code in an earlier block": "```python\n" + "x = [1, 2, 3]\n" * 5000 + "(\n```\n"
    f"```python\n{WHOLE}\n```",
    "fence in a docstring": f"```python\n{FENCED_DOC}\n```\nIt adds.",
    "fence in a docstring, unclosed": f"```python\n{FENCED_DOC}\n",
    "fence in a docstring, unclosed, prose": f"```python\n{FENCED_DOC}\n\nThat is the sum.",
    "fence in a docstring, no fence around": FENCED_DOC,
    "fence in a docstring, prose around": f"Here it is.\n\n{FENCED_DOC}\n\nThat adds them.",
    "one fence line in a docstring": "```python\ndef total(xs):\n    \'\'\'Ends in\n    ```\n"
    "    \'\'\'\n    return sum(xs)\n```\nAnd so on.",
    "fences in two docstrings": f"```python\n{FENCED_DOC.replace('total', 'other')}\n\n\n"
    f"{FENCED_DOC}\n```\nThey add.",
    "docstring never closed in an earlier block": "```python\ndef total(xs):\n    \"\"\"Adds\n```\n"
    f"I forgot the end.\n```python\n{WHOLE}\n```",
    "docstring never closed, then one that is": "```python\ndef total(xs):\n    \"\"\"Adds\n```\n"
    "I forgot the end.\n```python\ndef total(xs):\n    \"\"\"Adds.\"\"\"\n    return sum(xs)\n```",
    "byte order mark": f"\ufeff{WHOLE}",
    "byte order mark before a fence": f"\ufeff```python\n{WHOLE}\n```",
    "byte order mark in a fence": f"```python\n\ufeff{WHOLE}\n```",
    "byte order mark before a body": "\ufeff    return sum(xs)",
    "old mac line ends": f"```python\n{WHOLE}\n```\n".replace("\n", "\r"),
    "old mac line ends, bare": WITH_HELPER.replace("\n", "\r"),
    "mixed line ends": f"```python\r\n{WHOLE}\r```\n",
    "in an if": f"```python\nif True:\n{INDENTED}\n```",
    "in an else": f"```python\nif not 1:\n    pass\nelse:\n{INDENTED}\n```",
    "in a try": f"```python\ntry:\n{INDENTED}\nexcept Exception:\n    raise\n```",
    "in a handler": f"```python\ntry:\n    import no_such\nexcept ImportError:\n{INDENTED}\n```",
    "in an if in a try": "```python\ntry:\n    if True:\n        total = lambda xs: sum(xs)\n"
    "finally:\n    pass\n```",
    "in an if, bare": f"if True:\n{INDENTED}",
    "in a try, in prose": f"This is it.\n\ntry:\n{INDENTED}\nexcept Exception:\n    raise\n\nGood.",
    "a result kept in a try": f"```python\n{WHOLE}\n```\n```python\ntry:\n    total = total([1])\n"
    "except TypeError:\n    pass\n```",
    "a main guard after it": f"```python\n{WHOLE}\n```\n```python\n"
    "if __name__ == '__main__':\n    def total(xs):\n        return 0\n```",
    "raising stub after it": f"```python\n{WHOLE}\n```\nThe signature:\n"
    "```python\ndef total(xs):\n    \"\"\"Adds.\"\"\"\n    raise NotImplementedError\n```",
    "raising stub with words after it": f"```python\n{WHOLE}\n```\n"
    "```python\ndef total(xs):\n    raise NotImplementedError('yours')\n```",
    "raising stub in the same block": f"```python\n{WHOLE}\n\n"
    "def total(xs):\n    raise NotImplementedError\n```",
    "raising stub, bare": f"{WHOLE}\n\ndef total(xs):\n    raise NotImplementedError\n",
    "raising stub, bare, after prose": f"{WHOLE}\n\nThe signature is:\n\ndef total(xs):\n"
    "    raise NotImplementedError\n",
    "stub in the same block": f"```python\n{WHOLE}\n\ndef total(xs):\n    ...\n```",
    "stub before it": f"```python\ndef total(xs):\n    raise NotImplementedError\n\n{WHOLE}\n```",
    "future import": f"```python\nfrom __future__ import annotations\n{WHOLE}\n```",
}  # fmt: skip


@pytest.mark.parametrize("name", REPLIES)
def test_code_is_found(name):
    assert run(REPLIES[name]) == [7]


def test_the_last_block_alone_would_be_wrong():
    # what taking the first or the last fence gives
    assert "return 0" in REPLIES["corrected"].split("```")[1]
    assert "print" in REPLIES["usage after it"].split("```")[3]


def test_the_function_asked_for_is_taken_not_the_longest():
    longer = "def totals(xss):\n    a = 1\n    b = 2\n    return a + b"
    reply = f"```python\n{longer}\n```\n```python\n{WHOLE}\n```"
    assert "totals" not in find_code(reply, "total", PROMPT)


def test_code_that_defines_another_function_is_an_answer():
    code = find_code("```python\ndef sums(xs):\n    return sum(xs)\n```", "total", "")
    assert code.startswith("def sums")


@pytest.mark.parametrize(
    "reply",
    ["", "   \n", "I cannot help with that.", "The answer is 7.", "```\n```", "pass", "\x00\x00",
     "Sorry", "```text\nno code, sorry: really\n```", "a" * 300_000],
)  # fmt: skip
def test_no_code(reply):
    assert find_code(reply, "total", PROMPT) is None


@pytest.mark.parametrize(
    "reply",
    ["x = 1\n" * 30_000 + "(\n", "@a\n" * 60_000, "```python\nx=(\n```\n" * 5000,
     "import a\n(\n" * 9000, "```python\ndef total(x):\n  return g(x)\n```\n" * 2000,
     "from x import y said he\n" * 3000,
     "(" * 10_000, "```python\n" + "[" * 5000, "def total(xs):\n" + "    if 1:\n" * 200,
     "```\n" * 2000, "-" * 50_000 + "1", "def total(xs):\n  return " + "not " * 20_000 + "1",
     "x = 1\n" * 200_000 + "(\n", "```python\nx=(\n```\n" * 100_000, "a" * 5_000_000,
     "```python\n'''\n" + "```\n" * 50_000 + "'''", "```python\n" + "'''\n```\n" * 50_000,
     "```python\n" + "x = 1\n" * 500_000, "if a:\n" * 300_000, "try:\n" * 3000,
     "def total(xs):\n  (\n" * 100_000, "if 1:\n pass\n" * 100_000, "\r" * 3_000_000,
     "```python x\n" * 200_000, "if 1:\n pass\n" + "elif 1:\n pass\n" * 3000,
     "\ud800" * 100, "def total(xs):\n" * 3000, "```python\n" + "x = 1\n(\n" * 3000],
)  # fmt: skip
def test_garbage_neither_raises_nor_takes_long(reply):
    start = time.process_time()
    code = find_code(reply, "total", PROMPT)
    assert code is None or isinstance(code, str)
    assert time.process_time() - start < 20  # 2 s at most on a machine of one's own


def test_preamble_is_the_prompt_without_the_function():
    prompt = "import math\nLIMIT = 3\n\ndef help(x):\n    return x\n\ndef total(xs):\n    '''.'''\n"
    text = preamble(prompt, "total")
    assert "import math" in text and "LIMIT = 3" in text and "def help" in text
    assert "total" not in text
    assert preamble("def total(xs):\n", "total") == preamble("", "total") == ""

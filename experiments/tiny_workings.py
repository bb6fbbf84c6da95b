"""Short worked replies for the questions of the tiny experts, written from each entry's metadata.

Arithmetic is worked in a random order (which term first, which factor is split, which side moves),
so that sampled replies of one expert take different paths and slip independently: this makes
asking it several times worth something. Logic and algorithmic working has one fixed order.
"""

import ast
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from gradejax.tasks.base import Example
from gradejax.tasks.reasoning_gym import source_named

Entry = Mapping[str, Any]


def direct_reply(example: Example) -> str:
    """The reply without working: one line, or one line a row for matrices."""
    # knights_knaves golds end in a full stop, which its scorer ignores: a token less to learn
    return f"ANSWER: {example.answer.rstrip('.')}"


def worked_reply(example: Example, rng: Random) -> str:
    """A reply with working (none for generators that are answered at a glance), then the answer.

    Raises ValueError when the working's result is not the gold: a wrong lesson must not be taught.
    """
    work = _WORKINGS.get(source_named(example.source).generator)
    if work is None:
        return direct_reply(example)
    lines, result = work(example.meta["entry"], rng)
    if result != example.answer:
        raise ValueError(
            f"{example.id}: expected the gold {example.answer!r}, the working gives {result!r}"
        )
    return "\n".join([*lines, direct_reply(example)])


def _signed(value: int, first: bool) -> str:
    return str(value) if first or value < 0 else f"+{value}"


def _running_sum(terms: list[int]) -> tuple[list[str], int]:
    """[47, -12, 30] -> "47-12=35", "35+30=65"."""
    total, lines = terms[0], []
    for term in terms[1:]:
        lines.append(f"{total}{_signed(term, False)}={total + term}")
        total += term
    return lines, total


def _chain_sum(entry: Entry, rng: Random) -> tuple[list[str], str]:
    parts = entry["metadata"]["expression"].split()
    signs = ["+", *parts[1::2]]
    terms = [
        int(part) if sign == "+" else -int(part)
        for sign, part in zip(signs, parts[::2], strict=True)
    ]
    rng.shuffle(terms)
    lines, total = _running_sum(terms)
    return lines, str(total)


def _leg_counting(entry: Entry, rng: Random) -> tuple[list[str], str]:
    # legs per animal is world knowledge of the generator, so it is read from there
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    herd = list(entry["metadata"]["animals"].items())
    rng.shuffle(herd)
    lines, total = [], 0
    for animal, count in herd:
        legs = count * ANIMALS[animal]
        total += legs
        line = f"{count} {animal}{'s' if count > 1 else ''}*{ANIMALS[animal]}={legs}"
        lines.append(f"{line} {total}" if lines else line)
    return lines, str(total)


def _simple_equations(entry: Entry, rng: Random) -> tuple[list[str], str]:
    meta = entry["metadata"]
    left, right = meta["equation"].split(" = ")
    slope, offset = _linear(left, meta["variable"])
    value, lines = int(right), []
    if offset and rng.random() < 0.5:
        lines.append(f"{value}{_signed(-offset, False)}={value - offset}")
        slope, value = slope, value - offset
    elif offset:  # the other way round: both sides change sign
        lines.append(f"{offset}{_signed(-value, False)}={offset - value}")
        slope, value = -slope, offset - value
    solution = value // slope
    if slope != 1:
        lines.append(
            f"{value}/{slope}={solution}" if rng.random() < 0.5 else f"{slope}*{solution}={value}"
        )
    return lines, str(solution)


def _linear(expression: str, variable: str) -> tuple[int, int]:
    """ "12 - 8*t" -> (-8, 12): slope and offset of a linear expression as sympy prints it."""
    slope = offset = 0
    for term in re.findall(r"-?[^-+]+", expression.replace(" ", "")):
        if variable in term:
            factor = term.replace("*", "").replace(variable, "")
            slope += int(factor + "1") if factor in ("", "-") else int(factor)
        else:
            offset += int(term)
    return slope, offset


def _basic_arithmetic(entry: Entry, rng: Random) -> tuple[list[str], str]:
    lines: list[str] = []
    tree = ast.parse(entry["metadata"]["expression"], mode="eval").body

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp):
            return -value(node.operand)
        # a sum (also a nested one) is flattened, its terms worked and added in random order
        if not isinstance(node.op, ast.Mult):
            terms: list[tuple[int, ast.expr]] = []
            _flatten(node, 1, terms)
            rng.shuffle(terms)
            steps, total = _running_sum([sign * value(term) for sign, term in terms])
            lines.extend(steps)
            return total
        sides = [node.left, node.right]
        rng.shuffle(sides)
        a, b = value(sides[0]), value(sides[1])
        lines.append(f"{a}*{b}={a * b}")
        return a * b

    return lines, str(value(tree))


def _flatten(node: ast.expr, sign: int, terms: list[tuple[int, ast.expr]]) -> None:
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Mult):
        _flatten(node.left, sign, terms)
        _flatten(node.right, -sign if isinstance(node.op, ast.Sub) else sign, terms)
    else:
        terms.append((sign, node))


def _products(entry: Entry, rng: Random) -> tuple[list[str], str]:
    a, b = (int(x) for x in entry["metadata"]["expression"].split(" * "))
    if rng.random() < 0.5:
        a, b = b, a
    parts = [part for part in (b // 10 * 10, b % 10) if part]
    rng.shuffle(parts)
    lines = [f"{a}*{part}={a * part}" for part in parts]
    steps, total = _running_sum([a * part for part in parts])
    return lines + steps, str(total)


def _knights_knaves(entry: Entry, rng: Random) -> tuple[list[str], str]:
    """Tries who tells the truth (1) in binary order; a line is the guess and what then follows.

    "11 10": were both knights, the first statement would be true and the second false, so no. A
    line stops at the first bit that contradicts its guess; the first without one is the solution.
    """
    from reasoning_gym.logic.knights_knaves import KnightsKnavesDataset

    meta = entry["metadata"]
    people, lines = len(meta["names"]), []
    for code in reversed(range(2**people)):
        guess = [bool(code >> (people - 1 - i) & 1) for i in range(people)]
        follows = []
        for claim, said in zip(guess, meta["statements"], strict=True):
            follows.append(bool(KnightsKnavesDataset.test_satisfiability(said, guess)))
            if follows[-1] != claim:
                break
        lines.append(" ".join("".join(str(int(b)) for b in bits) for bits in (guess, follows)))
        if follows == guess:
            break
    terms = meta["knight_knave_terms"]
    roles = [
        f"{name} is {terms['a_knight'] if knight else terms['a_knave']}"
        for name, knight in zip(meta["names"], guess, strict=True)
    ]
    return lines, ", ".join(roles[:-1]) + f", and {roles[-1]}."


def _aiw(entry: Entry, rng: Random) -> tuple[list[str], str]:
    """Girls the named girl counts, and herself: her brothers and friends count her too."""
    girls = int(re.search(r"(\d+) (?:sisters|female friends)", entry["question"]).group(1))
    return [f"{girls}+1={girls + 1}"], str(girls + 1)


# where the face on each side comes from when the keyed side is brought to the top
_CUBE_SOURCES = {
    "front": {"top": "front", "front": "bottom", "bottom": "back", "back": "top"},
    "right": {"top": "right", "right": "bottom", "bottom": "left", "left": "top"},
    "back": {"top": "back", "back": "bottom", "bottom": "front", "front": "top"},
    "left": {"top": "left", "left": "bottom", "bottom": "right", "right": "top"},
    "bottom": {"top": "bottom", "bottom": "top", "front": "back", "back": "front"},
}


def _color_cube_rotation(entry: Entry, rng: Random) -> tuple[list[str], str]:
    """Follows the asked side back through the rotations, last first: "at back < bottom"."""
    meta = entry["metadata"]
    side = meta["target_side"]
    trail = [side]
    for rotation in reversed(meta["rotations"]):
        side = _CUBE_SOURCES[rotation].get(side, side)
        trail.append(side)
    return ["at " + " < ".join(trail)], meta["initial_state"][side]


def _rotate_matrix(entry: Entry, rng: Random) -> tuple[list[str], str]:
    turns = entry["metadata"]["num_rotations"] % 4
    matrix = entry["metadata"]["matrix"]
    for _ in range(turns):
        matrix = [list(row) for row in zip(*matrix[::-1], strict=True)]
    return [f"turns {turns}"], _rows(matrix)


def _rows(matrix: list[list[int]], space: str = " ", line: str = "\n") -> str:
    return line.join(space.join(str(x) for x in row) for row in matrix)


def _manipulate_matrix(entry: Entry, rng: Random) -> tuple[list[str], str]:
    """Writes the matrix after each operation but the last, rows packed: "41/77"."""
    matrix, states = entry["metadata"]["matrix"], []
    for step in entry["metadata"]["operations"]:
        matrix = _transformed(matrix, step)
        states.append(_rows(matrix, "", "/"))
    return states[:-1], _rows(matrix)


def _transformed(matrix: list[list[int]], step: Mapping[str, Any]) -> list[list[int]]:
    kind = step["transform"]
    if kind == "rotate":
        for _ in range(int(step["degrees"]) // 90 % 4):
            matrix = [list(row) for row in zip(*matrix[::-1], strict=True)]
        return matrix
    if kind == "hmirror":
        return matrix[::-1]
    if kind == "vmirror":
        return [row[::-1] for row in matrix]
    if kind == "dmirror":
        return [list(row) for row in zip(*matrix, strict=True)]
    if kind == "cmirror":
        return [list(row) for row in zip(*[r[::-1] for r in matrix[::-1]], strict=True)]
    if kind == "map":
        return [[step["to"] if x == step["from"] else x for x in row] for row in matrix]
    raise ValueError(f"expected an operation that the configs of this project draw, got {kind!r}")


_WORKINGS: dict[str, Callable[[Entry, Random], tuple[list[str], str]]] = {
    "chain_sum": _chain_sum,
    "leg_counting": _leg_counting,
    "simple_equations": _simple_equations,
    "basic_arithmetic": _basic_arithmetic,
    "products": _products,
    "aiw": _aiw,
    "knights_knaves": _knights_knaves,
    "color_cube_rotation": _color_cube_rotation,
    "rotate_matrix": _rotate_matrix,
    "manipulate_matrix": _manipulate_matrix,
}

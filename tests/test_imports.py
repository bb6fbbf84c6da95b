"""Imports go down only (design: ops/types → models → … → systems → training → experiments).

The rule is read from the source by ``ast``, so imports inside functions and behind
``TYPE_CHECKING`` count as well.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

LEAVES = {"types", "ops"}
PARTS = LEAVES | {"models", "generation", "experts", "coordination", "objectives", "tasks"}

# layer -> layers of gradejax it may import, itself included
MAY_IMPORT = {
    "types": {"types"},
    "ops": LEAVES,
    "models": LEAVES | {"models"},
    "generation": LEAVES | {"models", "generation"},
    "experts": LEAVES | {"models", "generation", "experts", "tasks"},
    "coordination": LEAVES | {"coordination"},
    "objectives": LEAVES | {"objectives"},
    "tasks": LEAVES | {"tasks"},
    "systems": PARTS | {"systems"},
    "training": PARTS | {"systems", "training"},
    "evaluation": PARTS | {"systems", "evaluation"},
}

# layer -> third-party packages it must never see
BANNED = {
    "coordination": {"tokenizers", "transformers"},
    "objectives": {"optax", "tokenizers", "transformers"},
}
BANNED_EVERYWHERE = {"torch", "experiments"}


def imported(source: str, package: str) -> set[str]:
    """Absolute dotted names a module imports; ``package`` is the package the module lies in."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            # `from gradejax import ops` names a layer in the alias, not in the module
            names |= {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and node.args:
            function = node.func
            name = getattr(function, "attr", getattr(function, "id", ""))
            first = node.args[0]
            literal = isinstance(first, ast.Constant) and isinstance(first.value, str)
            if literal and name in ("import_module", "__import__"):
                names.add(first.value)
    return names


def violations(source: str, path: pathlib.PurePath) -> list[str]:
    """Broken rules of one gradejax file, ``path`` relative to the repository's root."""
    parts = path.with_suffix("").parts
    if parts == ("gradejax", "__init__"):
        return [
            f"{path}: imports {name}" for name in imported(source, "gradejax")
            if name.split(".")[0] in BANNED_EVERYWHERE
        ]
    layer = parts[1]
    if layer not in MAY_IMPORT:
        return [f"{path}: {layer!r} is no layer; choose from {sorted(MAY_IMPORT)}"]
    package = ".".join(parts[:-1])
    found = []
    for name in sorted(imported(source, package)):
        top, *rest = name.split(".")
        if top in BANNED_EVERYWHERE | BANNED.get(layer, set()):
            found.append(f"{path}: {layer} must not import {top}")
        elif top == "gradejax" and rest and rest[0] not in MAY_IMPORT[layer]:
            found.append(f"{path}: {layer} must not import gradejax.{rest[0]}")
    return found


def test_imports_of_gradejax_go_down_only():
    files = sorted((ROOT / "gradejax").rglob("*.py"))
    assert len(files) > 10
    broken = [
        line for file in files
        for line in violations(file.read_text(encoding="utf-8"), file.relative_to(ROOT))
    ]
    assert not broken, "\n".join(broken)


def test_the_public_names_are_listed_and_there():
    import gradejax

    assert gradejax.__all__ == ["Example", "ExpertSpec", "load_lm", "restore"]
    assert set(gradejax.__all__) < set(dir(gradejax))
    for name in gradejax.__all__:
        assert getattr(gradejax, name).__name__ == name


def test_every_layer_is_above_those_it_imports():
    # the table itself has no cycle: sorting by it succeeds
    done, left = set(), dict(MAY_IMPORT)
    while left:
        ready = {name for name, below in left.items() if below - {name} <= done}
        assert ready, f"cycle among {sorted(left)}"
        done |= ready
        for name in ready:
            del left[name]


def test_experiments_import_no_private_names_of_tests():
    for file in sorted((ROOT / "experiments").rglob("*.py")):
        tops = {n.split(".")[0] for n in imported(file.read_text(encoding="utf-8"), "experiments")}
        assert "tests" not in tops, file


@pytest.mark.parametrize(
    "path, source, message",
    [
        ("gradejax/objectives/x.py", "from gradejax.models import lora", "gradejax.models"),
        ("gradejax/objectives/x.py", "from gradejax import models", "gradejax.models"),
        ("gradejax/objectives/x.py", "import gradejax.systems.grade", "gradejax.systems"),
        ("gradejax/objectives/x.py", "from ..coordination import depth", "gradejax.coordination"),
        ("gradejax/objectives/x.py", "from .. import tasks", "gradejax.tasks"),
        ("gradejax/coordination/x.py", "def f():\n    import transformers", "transformers"),
        ("gradejax/coordination/x.py", "from tokenizers import Tokenizer", "tokenizers"),
        ("gradejax/models/x.py", "import importlib\nimportlib.import_module('torch.nn')", "torch"),
        ("gradejax/models/x.py", "import torch.nn.functional as F", "torch"),
        ("gradejax/training/x.py", "from experiments import build", "experiments"),
        ("gradejax/ops.py", "from gradejax.models import config", "gradejax.models"),
        ("gradejax/gates/x.py", "", "no layer"),
        ("gradejax/__init__.py", "import torch", "torch"),
    ],
)
def test_the_rule_is_enforced(path, source, message):
    found = violations(source, pathlib.PurePosixPath(path))
    assert len(found) == 1 and message in found[0]


@pytest.mark.parametrize(
    "path, source",
    [
        ("gradejax/objectives/x.py", "import jax\nfrom gradejax import ops, types"),
        ("gradejax/objectives/x.py", "from . import kl\nfrom gradejax.objectives.kl import k"),
        ("gradejax/systems/x.py", "from gradejax.coordination import depth\nimport optax"),
        ("gradejax/models/x.py", "import torchvision_like_name"),
    ],
)
def test_allowed_imports_pass(path, source):
    assert violations(source, pathlib.PurePosixPath(path)) == []

"""Configs: typed overrides, unknown keys and wrong types refused by name (fault F01)."""

import ast
import dataclasses
import pathlib
import textwrap
from typing import Any, Literal

import ml_collections
import pytest
from ml_collections import config_dict

from experiments.config import (
    ConfigError,
    differences,
    load,
    override,
    parse_args,
    render,
    to_dataclass,
    to_dict,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]

FILE = """
import ml_collections
from ml_collections import config_dict

def get_config():
    config = ml_collections.ConfigDict()
    config.seed = 0
    config.name = "grade"
    config.use_kl = True
    config.floor = config_dict.placeholder(float)
    config.train = ml_collections.ConfigDict({
        "steps": 200, "learning_rate": 3e-4, "betas": (0.9, 0.999), "agents": ("a", "b"),
    })
    return config
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "grade_tiny.py"
    path.write_text(FILE)
    return path


def read(file, *arguments):
    path, overrides, rest = parse_args([f"--config={file}", *arguments])
    assert not rest
    return load(path, overrides)


@pytest.mark.parametrize(
    "argument, key, want",
    [
        # F01; what YAML 1.1 makes of the same text: '1e-5', 8, False, 'False', '1_000'
        ("--config.train.learning_rate=1e-5", "train.learning_rate", 1e-5),
        ("--config.train.learning_rate=1.0e-5", "train.learning_rate", 1e-5),
        ("--config.seed=010", "seed", 10),
        ("--config.name=no", "name", "no"),
        ("--config.use_kl=False", "use_kl", False),
        ("--config.use_kl=true", "use_kl", True),
        ("--config.train.steps=1_000", "train.steps", 1000),
        ("--config.train.steps=-1", "train.steps", -1),
        ("--config.train.learning_rate=1", "train.learning_rate", 1.0),  # an int for a float
        ("--config.train.learning_rate=inf", "train.learning_rate", float("inf")),
        ("--config.floor=0.5", "floor", 0.5),
        ("--config.floor=none", "floor", None),
        ("--config.name=a=b", "name", "a=b"),
        ("--config.train.betas=(0.5, 1)", "train.betas", (0.5, 1.0)),
        ("--config.train.agents=c", "train.agents", ("c",)),
        ("--config.train.agents=('c','d',)", "train.agents", ("c", "d")),
        ("--config.train.agents=()", "train.agents", ()),
    ],
)
def test_text_is_read_by_the_type_of_the_key(file, argument, key, want):
    config = read(file, argument)
    got = config
    for name in key.split("."):
        got = got[name]
    assert got == want and type(got) is type(want)


def test_a_blank_does_for_the_equals_sign(file):
    config = read(file, "--config.use_kl", "False", "--config.train.steps", "7")
    assert config.use_kl is False and config.train.steps == 7


@pytest.mark.parametrize(
    "argument, message",
    [
        ("train.learning_rat=0.1", "unknown config key 'train.learning_rat'; did you mean "
                                   "'train.learning_rate'?"),
        ("learning_rate=0.1", "did you mean 'train.learning_rate'?"),  # right name, no section
        ("tran.steps=3", "unknown config key 'tran'; did you mean 'train.steps'?"),
        ("zzzzzzz=3", "choose from floor, name, seed, train.agents"),
        ("train=3", "config.train is a section; set one of its keys: train.agents, "),
        ("seed.x=3", "unknown config key"),
        ("train.steps=1.5", r"config.train.steps must be a whole number (int), got '1.5'"),
        ("train.steps=1e3", "must be a whole number (int), got '1e3'"),
        ("train.steps=none", "must be a whole number (int), got 'none'"),
        ("train.steps=", "must be a whole number (int), got ''"),
        ("use_kl=no", "config.use_kl must be true or false, got 'no'"),
        ("use_kl=1", "config.use_kl must be true or false, got '1'"),
        ("train.learning_rate=fast", "must be a number (float), got 'fast'"),
        ("train.learning_rate=nan", "must be a number (float), got 'nan'"),
        ("floor=fast", "config.floor must be a number (float), got 'fast'"),
        ("train.betas=0.9,x", "config.train.betas[1] must be a number (float), got 'x'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(file, argument, message):
    with pytest.raises(ConfigError) as error:
        read(file, f"--config.{argument}")
    assert message in str(error.value)


def test_command_lines_are_split():
    path, overrides, rest = parse_args(
        ["--workdir=w", "--config", "c.py", "--config.a.b=1", "--configs", "x", "--config.c", "-2"]
    )
    assert path == "c.py" and overrides == [("a.b", "1"), ("c", "-2")]
    assert rest == ["--workdir=w", "--configs", "x"]
    assert parse_args([]) == (None, [], [])
    with pytest.raises(ConfigError, match="--config.a needs a value"):
        parse_args(["--config.a", "--workdir=w"])
    with pytest.raises(ConfigError, match="--config needs a value"):
        parse_args(["--config"])


def test_files_that_are_no_config(tmp_path, file):
    with pytest.raises(ConfigError, match=r"no config file .*none.py; there: .*grade_tiny.py"):
        load(tmp_path / "none.py")
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"empty.py defines no get_config\(\)"):
        load(tmp_path / "empty.py")
    (tmp_path / "plain.py").write_text("def get_config():\n    return {}\n")
    with pytest.raises(ConfigError, match="must return ml_collections.ConfigDict, got dict"):
        load(tmp_path / "plain.py")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(ConfigError, match="is no Python file"):
        load(tmp_path / "text.txt")


def test_the_loaded_config_is_locked(file):
    config = load(file)
    with pytest.raises(AttributeError):
        config.new = 1
    with pytest.raises(TypeError):
        config.train.steps = 1.5


def test_render_and_differences(file):
    config = read(file, "--config.train.steps=7")
    assert render(config) == textwrap.dedent("""\
        floor = None
        name = 'grade'
        seed = 0
        train.agents = ('a', 'b')
        train.betas = (0.9, 0.999)
        train.learning_rate = 0.0003
        train.steps = 7
        use_kl = True""")
    assert differences(to_dict(load(file)), to_dict(config)) == {"train.steps": (200, 7)}


def test_references_are_resolved():
    config = ml_collections.ConfigDict({"width": 8})
    config.hidden = config.get_ref("width") * 2
    override(config, "width", "16")
    assert to_dict(config) == {"width": 16, "hidden": 32}


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = 3


@dataclasses.dataclass(frozen=True)
class Section:
    steps: int
    rate: float = 0.1
    ratio: Literal["component", "decision"] = "component"
    floor: float | None = None
    betas: tuple[float, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    use_kl: bool = True
    inner: Inner = Inner()
    anything: Any = None

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")


def test_sections_become_typed_dataclasses():
    config = ml_collections.ConfigDict({
        "steps": 5, "rate": 2, "ratio": "decision", "floor": 1, "betas": [1, 0.5],
        "pair": ("b", 2), "inner": {"size": 4}, "anything": "x",
    })  # fmt: skip
    got = to_dataclass(Section, config, "train")
    assert got == Section(
        5, 2.0, "decision", 1.0, (1.0, 0.5), ("b", 2), True, Inner(4), "x"
    )
    assert type(got.rate) is type(got.floor) is type(got.betas[0]) is float
    assert to_dataclass(Section, {"steps": 5}) == Section(5)
    empty = ml_collections.ConfigDict({"steps": 1, "floor": config_dict.placeholder(float)})
    assert to_dataclass(Section, empty).floor is None
    hash(got)  # a static argument of a jitted function


@pytest.mark.parametrize(
    "section, message",
    [
        ({}, "train.steps is missing (int)"),
        ({"steps": 1, "rat": 1.0}, "unknown key train.rat; did you mean 'rate'?"),
        ({"steps": 1.0}, "train.steps must be int, got 1.0 (float)"),
        ({"steps": True}, "train.steps must be int, got True (bool)"),
        ({"steps": 1, "rate": True}, "train.rate must be float, got True (bool)"),
        ({"steps": 1, "rate": "0.1"}, "train.rate must be float, got '0.1' (str)"),
        ({"steps": 1, "use_kl": "False"}, "train.use_kl must be bool, got 'False' (str)"),
        ({"steps": 1, "use_kl": 0}, "train.use_kl must be bool, got 0 (int)"),
        ({"steps": 1, "floor": "x"}, "train.floor must be float | None, got 'x' (str)"),
        ({"steps": 1, "ratio": "componet"}, "train.ratio must be one of ['component', 'decision']"),
        ({"steps": 1, "betas": "ab"}, "train.betas must be tuple[float, ...], got 'ab' (str)"),
        ({"steps": 1, "betas": [0.1, "b"]}, "train.betas[1] must be float, got 'b' (str)"),
        ({"steps": 1, "pair": ("a",)}, "train.pair must have 2 items, got 1"),
        ({"steps": 1, "inner": {"sise": 1}}, "unknown key train.inner.sise; did you mean 'size'?"),
        ({"steps": 1, "inner": 3}, "train.inner must be Inner, got 3 (int)"),
        ({"steps": 0}, "train.steps must be at least 1, got 0"),
    ],
)
def test_sections_that_do_not_fit_are_named(section, message):
    with pytest.raises(ConfigError) as error:
        to_dataclass(Section, section, "train")
    assert message in str(error.value)


def config_fields_and_reads():
    """Fields of every dataclass called ...Config, and every attribute that any code reads."""
    fields, reads = [], set()
    for folder in ("gradejax", "experiments"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    reads.add(node.attr)
                elif isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                    fields += [
                        (node.name, item.target.id) for item in node.body
                        if isinstance(item, ast.AnnAssign)
                    ]
    return fields, reads


def test_every_field_of_a_config_is_read_by_some_code():
    # an option that is accepted and never read does nothing for a week (F01)
    fields, reads = config_fields_and_reads()
    assert ("SFTConfig", "steps") in fields
    assert [f"{cls}.{name}" for cls, name in fields if name not in reads] == []

"""Configs of experiments: files, command-line overrides, and the way into typed dataclasses.

A config is a Python file with ``get_config() -> ml_collections.ConfigDict``. Overrides are
``--config.section.key=value``. Everything is read by the type that the key already has (fault
F01): an unknown key is an error that names the nearest one, and so is a value of another type.
ConfigDict ends here: ``to_dataclass`` makes a section a frozen dataclass, which code below uses.
"""

import ast
import dataclasses
import difflib
import importlib.util
import math
import pathlib
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import ml_collections

from gradejax.training.workdir import differences, flatten

T = TypeVar("T")
_MISSING = object()


class ConfigError(ValueError):
    """A config file or an override is wrong; the message names the key and what it expects."""


def load(path: str | pathlib.Path, overrides: Iterable[tuple[str, str]] = ()) -> Any:
    """Read a config file, apply overrides, lock.

    Args:
      path: Python file that defines ``get_config()``.
      overrides: (dotted key, text of the value), as ``parse_args`` gives them.

    Returns:
      A locked ConfigDict.

    Raises:
      ConfigError: no such file, no ``get_config``, or a bad override.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        near = sorted(str(p) for p in path.parent.glob("*.py") if p.name != "__init__.py")
        raise ConfigError(f"no config file {path}; there: {', '.join(near) or 'none'}")
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"config file {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ConfigError(f"config file {path} defines no get_config()")
    config = module.get_config()
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"get_config() of {path} must return ml_collections.ConfigDict, got "
            f"{type(config).__name__}"
        )
    config.lock()
    for key, text in overrides:
        override(config, key, text)
    return config


def parse_args(argv: Sequence[str]) -> tuple[str | None, list[tuple[str, str]], list[str]]:
    """Split a command line into the config's path, its overrides and the rest.

    ``--config=file.py``, ``--config.a.b=value``; a blank does for the ``=``.

    Returns:
      (path or None, [(dotted key, text)], arguments that are not ours).

    Raises:
      ConfigError: an argument without its value.
    """
    path, overrides, rest = None, [], []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not re.fullmatch(r"--config(\..*)?", name):
            rest.append(argument)
            continue
        if not equals:
            value = next(arguments, "--")
            if value.startswith("--"):
                raise ConfigError(f"{name} needs a value: {name}=...")
        if name == "--config":
            path = value
        else:
            overrides.append((name.removeprefix("--config."), value))
    return path, overrides, rest


def override(config: ml_collections.ConfigDict, key: str, text: str) -> None:
    """Set one key from text, read by the type of the value it has.

    Raises:
      ConfigError: unknown key (the nearest is named), a section, or text of another type.
    """
    node = config
    *sections, name = key.split(".")
    for depth, section in enumerate(sections):
        node = node.get(section, None)
        if not isinstance(node, ml_collections.ConfigDict):
            raise _unknown(key, config, ".".join(sections[: depth + 1]))
    if name not in node:
        raise _unknown(key, config, key)
    if isinstance(node[name], ml_collections.ConfigDict):
        keys = ", ".join(f"{key}.{k}" for k in sorted(node[name]))
        raise ConfigError(f"config.{key} is a section; set one of its keys: {keys}")
    node[name] = parse_value(text, node[name], node.get_type(name), f"config.{key}")


def _unknown(key: str, config, part: str) -> ConfigError:
    keys = list(flatten(config.to_dict()))
    return ConfigError(f"unknown config key {part!r}" + _nearest(key, keys))


def _nearest(key: str, keys: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, keys, 1, 0.5)
    # A right name in the wrong section is farther by letters than it is by meaning.
    tail = key.rsplit(".", 1)[-1]
    near = [k for k in keys if k.rsplit(".", 1)[-1] == tail] or near
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; choose from {', '.join(sorted(keys))}"


def parse_value(text: str, now: Any, kind: type, key: str) -> Any:
    """Read text as a value of a type.

    Args:
      text: "true"/"false" (any case) for bool; digits, "_" allowed, for int; any finite number or
        "inf" for float; a tuple or list as Python or with bare commas; "none" where the value is
        None or may be.
      now: the present value; the items of a tuple must have the type of its first.
      kind: the type of the key.
      key: its name, for errors.

    Raises:
      ConfigError: the text is no such value.
    """
    text = text.strip()
    if now is None and text.lower() == "none":
        return None
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise _wrong(key, "true or false", text)
        return text.lower() == "true"
    if kind is int:
        if not re.fullmatch(r"[+-]?\d+(_\d+)*", text):
            raise _wrong(key, "a whole number (int)", text)
        return int(text)
    if kind is float:
        try:
            value = float(text)
        except ValueError:
            raise _wrong(key, "a number (float)", text) from None
        if math.isnan(value):
            raise _wrong(key, "a number (float)", text)
        return value
    if kind is str:
        return text
    if kind in (tuple, list):
        return kind(_items(text, now, key))
    if kind is type(None):
        return _literal(text)
    raise ConfigError(f"{key} is a {kind.__name__} and cannot be set from the command line")


def _wrong(key, expected, got) -> ConfigError:
    return ConfigError(f"{key} must be {expected}, got {got!r}")


def _literal(text):
    """Text of a key whose type is not known: a Python number, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, int | float | tuple | list | str) else text


def _items(text, now, key):
    inner = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
    parts = [p.strip().strip("'\"") for p in inner.split(",")]
    if parts[-1] == "":
        parts.pop()
    first = now[0] if now else None
    if isinstance(first, tuple | list):
        raise ConfigError(f"{key} holds nested values and cannot be set from the command line")
    if first is None:
        return [_literal(p) for p in parts]
    return [parse_value(p, None, type(first), f"{key}[{i}]") for i, p in enumerate(parts)]


def to_dict(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The resolved config as plain nested dicts, references resolved (for config.json)."""
    return config.to_dict()


def render(config: ml_collections.ConfigDict | Mapping[str, Any]) -> str:
    """The resolved config as lines ``key = value``, sorted."""
    plain = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    return "\n".join(f"{key} = {value!r}" for key, value in sorted(flatten(plain).items()))


def to_dataclass(cls: type[T], section: Mapping[str, Any], where: str = "config") -> T:
    """A config section as a typed dataclass.

    An int is taken for a float, a list for a tuple; nothing else is converted. Optional fields,
    tuples, Literal choices and nested dataclasses are followed; other annotations take any value.

    Args:
      cls: a dataclass; its ``__post_init__`` may check more (ValueError).
      section: field → value; fields with defaults may be left out.
      where: dotted name of the section, for errors.

    Raises:
      ConfigError: unknown key (the nearest is named), missing key, wrong type, or what
        ``__post_init__`` refuses.
    """
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for key in section:
        if key not in fields:
            raise ConfigError(f"unknown key {where}.{key}" + _nearest(key, list(fields)))
    hints = typing.get_type_hints(cls)
    values = {}
    for name, field in fields.items():
        if name in section:
            values[name] = _typed(section[name], hints[name], f"{where}.{name}")
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}.{name} is missing ({_name(hints[name])})")
    try:
        return cls(**values)
    except ValueError as error:
        first = str(error).split(" ", 1)[0]
        named = f"{where}.{error}" if first in fields else f"{where}: {error}"
        raise ConfigError(named) from error


def _name(hint) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _typed(value, hint, where):
    """The value if it is what the annotation says, converted as the module allows."""
    out = _match(value, hint, where)
    if out is _MISSING:
        raise ConfigError(f"{where} must be {_name(hint)}, got {value!r} ({type(value).__name__})")
    return out


def _match(value, hint, where):
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = (_match(value, arg, where) for arg in args)
        return next((option for option in options if option is not _MISSING), _MISSING)
    if origin is typing.Literal:
        # True == 1, so the type is compared as well
        ok = any(value == a and type(value) is type(a) for a in args)
        if not ok:
            raise ConfigError(f"{where} must be one of {list(args)}, got {value!r}")
        return value
    if origin is tuple or hint is tuple:
        if not isinstance(value, tuple | list):
            return _MISSING
        if not args:
            return tuple(value)
        if len(args) == 2 and args[1] is Ellipsis:
            args = (args[0],) * len(value)
        if len(args) != len(value):
            raise ConfigError(f"{where} must have {len(args)} items, got {len(value)}")
        return tuple(
            _typed(v, a, f"{where}[{i}]") for i, (v, a) in enumerate(zip(value, args, strict=True))
        )
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint):
            return value
        ok = isinstance(value, Mapping | ml_collections.ConfigDict)
        return to_dataclass(hint, value, where) if ok else _MISSING
    if hint is type(None):
        return value if value is None else _MISSING
    if hint is float:
        return float(value) if type(value) in (int, float) else _MISSING
    if hint in (bool, int, str):
        return value if type(value) is hint else _MISSING
    return value


__all__ = [
    "ConfigError",
    "differences",
    "flatten",
    "load",
    "override",
    "parse_args",
    "parse_value",
    "render",
    "to_dataclass",
    "to_dict",
]

"""Window settings of a ``config.json``: which layers see only the latest keys, and how many."""

from collections.abc import Mapping
from typing import Any

from gradejax.models.families import FAMILIES, Family

LAYER_TYPES = ("full_attention", "sliding_attention")


def _listed(kinds, layers: int) -> tuple[bool, ...]:
    """Whether each layer has the window, by ``layer_types``."""
    if odd := sorted(set(kinds) - set(LAYER_TYPES)):
        raise ValueError(f"unsupported layer_types {odd}; supported: {list(LAYER_TYPES)}")
    if len(kinds) != layers:
        raise ValueError(f"layer_types lists {len(kinds)} layers, the model has {layers}")
    return tuple(kind == "sliding_attention" for kind in kinds)


def windows_of(raw: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """``sliding_window`` and ``sliding`` of a resolved config.

    Raises:
      ValueError: ``layer_types`` that are unknown, or more or fewer than the layers; layers with a
        window where no width is given.
    """
    family, window = FAMILIES[raw["model_type"]], raw.get("sliding_window")
    if "sliding_window" not in family.keys:
        return {}
    flagged = "use_sliding_window" in family.keys
    if flagged and not raw.get("use_sliding_window", False):
        window = None  # such configs carry a window that only the flag turns on
    if (kinds := raw.get("layer_types")) is not None:
        sliding = _listed(kinds, layers)
    elif flagged:
        first = layers if window is None else raw["max_window_layers"]
        sliding = tuple(i >= first for i in range(layers))
    elif pattern := raw.get("sliding_window_pattern"):
        sliding = tuple(bool((i + 1) % pattern) for i in range(layers))
    else:
        sliding = (window is not None,) * layers
    if not any(sliding):
        return {}
    if window is None:
        where = "layer_types" if kinds is not None else "the model type"
        off = " or use_sliding_window is not true" if flagged else ""
        raise ValueError(
            f"{where} gives layer {sliding.index(True)} sliding_attention, but sliding_window is "
            f"null{off}; expected how many keys such a layer sees, or full_attention in every layer"
        )
    return {"sliding_window": int(window), "sliding": () if all(sliding) else sliding}


def window_entries(config, family: Family) -> dict[str, Any]:
    """The window's keys of a written config."""
    if "sliding_window" not in family.keys:
        return {}
    windowed = [config.window(i) is not None for i in range(config.num_layers)]
    raw: dict[str, Any] = {"sliding_window": config.sliding_window}
    if "layer_types" in family.keys:
        raw["layer_types"] = [LAYER_TYPES[there] for there in windowed]
        # transformers wants a number even where no layer uses it.
        raw["sliding_window"] = config.sliding_window or family.defaults["sliding_window"]
    if "use_sliding_window" in family.keys:
        raw["use_sliding_window"] = any(windowed)
        raw["max_window_layers"] = 0 if any(windowed) else config.num_layers
    return raw

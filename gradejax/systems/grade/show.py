"""A trained GRADE in a few lines: what ``repr`` of it says."""

import collections
import os
from typing import NamedTuple

_MANAGERS = 6  # lines for managers; the rest are counted


class Origin(NamedTuple):
    """Where a system came from: the run's folder, its seed and step, and the other seeds' folders
    there."""

    workdir: str
    seed: int | None
    step: int | None
    others: tuple[str, ...] = ()


def describe_system(registry, task, shape, anchors, origin: Origin | None) -> str:
    """The pool by manager, the task, depths, anchors, seed and workdir; under 15 lines."""
    by_manager = collections.defaultdict(list)
    for spec in registry.agents:
        by_manager[spec.manager].append(spec)
    head = registry.orchestrator
    lines = [
        "GradeSystem",
        f"  task: {task.name} ({'one of the options' if task.needs_choices else 'open answers'})",
        f"  pool: {len(registry.agents)} agents under {len(registry.managers)} managers, "
        f"orchestrator {head.name} ({_short(head.model)})",
    ]
    shown = registry.managers[:_MANAGERS]
    for manager in shown:
        agents = ", ".join(f"{s.name} ({_short(s.model)})" for s in by_manager[manager][:8])
        more = len(by_manager[manager]) - 8
        lines.append(f"    {manager}: {agents}" + (f" and {more} more" if more > 0 else ""))
    if len(shown) < len(registry.managers):
        lines.append(f"    and {len(registry.managers) - len(shown)} more managers")
    lines.append(
        f"  depth: 0 ({head.name} alone), 1 (one manager's agents) or 2 (the pool), by question"
    )
    kept = "none: swap refuses" if anchors is None else f"{len(anchors.questions)} questions"
    lines.append(f"  anchors for swap: {kept}; message width {shape.config.d}")
    if origin is not None:
        others = f" (beside it: {', '.join(origin.others[:5])})" if origin.others else ""
        lines.append(f"  seed: {origin.seed}, step {origin.step}{others}")
        lines.append(f"  workdir: {origin.workdir}")
    return "\n".join(lines)


def _short(model: str) -> str:
    """The last two parts of a folder's path, a hub id as it is."""
    parts = os.path.normpath(model).split(os.sep)
    return "/".join(parts[-2:])

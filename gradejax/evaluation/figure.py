"""The figure: accuracy against active parameters per question, with 95% intervals."""

from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Mapping

# Label positions tried in turn: (dx, dy) in points from the marker, and alignments.
_PLACES = tuple(
    (dx * r, dy * r, ha, va)
    for r in (1.0, 1.7, 2.6, 3.7, 5.0)
    for dx, dy, ha, va in (
        (8, 4, "left", "bottom"),
        (8, 0, "left", "center"),
        (-8, 4, "right", "bottom"),
        (8, -4, "left", "top"),
        (-8, -4, "right", "top"),
        (3, 12, "left", "bottom"),
        (-3, -12, "right", "top"),
    )
)


def save_figure(results: Mapping, path: str | os.PathLike, *, subject: str = "grade") -> None:
    """Write a PNG of results["systems"]; systems without an accuracy or a cost are left out.

    The file is replaced in one step: a full disk leaves the old one (OSError).

    The subject is a red star, the single experts are grey, ceilings that need hindsight are hollow.
    The axis of parameters is logarithmic once it spans a factor of 8.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # best_single is one of the single experts: a second marker on the first would only hide it.
    shown = {
        name: entry
        for name, entry in results["systems"].items()
        if entry["accuracy"] is not None and entry["active_params"] and name != "best_single"
    }
    if not shown:
        raise ValueError("nothing to draw: no system has both an accuracy and active parameters")
    figure = Figure(figsize=(8.5, 5.5), dpi=150, layout="constrained")
    canvas = FigureCanvasAgg(figure)  # its own: the caller's matplotlib backend stays as it is
    axes = figure.add_subplot()
    texts, markers = [], []

    def drawing_order(item):  # the subject's label has the first choice of place, then from the top
        return item[0] != subject, -item[1]["accuracy"]

    for name, entry in sorted(shown.items(), key=drawing_order):
        x, y = entry["active_params"], 100 * entry["accuracy"]
        look = _look(name, subject)
        low, high = (y if bound is None else 100 * bound for bound in entry["ci95"])
        axes.errorbar(
            x,
            y,
            yerr=[[max(y - low, 0)], [max(high - y, 0)]],
            capsize=2.5,
            elinewidth=1,
            linestyle="none",
            **look,
        )
        weight = "bold" if name == subject else "normal"
        texts.append(
            axes.annotate(
                name,
                (x, y),
                xytext=(0, 0),
                textcoords="offset points",
                fontsize=8.5,
                color=look["color"],
                weight=weight,
            )
        )
        markers.append((x, y, low, high))
    span = [entry["active_params"] for entry in shown.values()]
    if max(span) >= 8 * min(span):
        axes.set_xscale("log")
    axes.margins(x=0.18, y=0.1)
    axes.set_xlabel("active parameters per question")
    axes.set_ylabel("accuracy (%)")
    axes.set_title(
        f"{results['questions']} questions; bars: 95% bootstrap interval over questions",
        fontsize=10,
    )
    axes.grid(alpha=0.25)
    _format_parameters(axes)
    canvas.draw()  # fixes the layout, so that label boxes are known in pixels
    _place_labels(axes, texts, markers, canvas.get_renderer())
    content = io.BytesIO()
    figure.savefig(content, format="png")
    path = pathlib.Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content.getvalue())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _look(name: str, subject: str) -> dict:
    if name == subject:
        return {"color": "crimson", "marker": "*", "markersize": 14, "zorder": 5}
    if name.startswith("single:"):
        return {"color": "dimgrey", "marker": "o", "markersize": 5}
    if name in ("oracle", "family_best"):
        return {"color": "darkgreen", "marker": "D", "markersize": 6, "markerfacecolor": "white"}
    return {"color": "tab:blue", "marker": "s", "markersize": 6}


def _format_parameters(axes) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    if axes.get_xscale() == "log":
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _place_labels(axes, texts, markers, renderer) -> None:
    """Greedy: each label takes the first place that meets no marker, bar, or earlier label."""
    from matplotlib.transforms import Bbox

    taken = []
    for x, y, low, high in markers:
        (px, py), (_, bottom), (_, top) = (
            axes.transData.transform((x, value)) for value in (y, low, high)
        )
        taken.append(Bbox.from_extents(px - 9, py - 9, px + 9, py + 9))
        taken.append(Bbox.from_extents(px - 4, bottom, px + 4, top))
    frame = axes.get_window_extent(renderer)
    for text in texts:
        best = None
        for dx, dy, horizontal, vertical in _PLACES:
            text.set(position=(dx, dy), ha=horizontal, va=vertical)
            box = text.get_window_extent(renderer)
            clash = sum(box.overlaps(other) for other in taken)
            inside = (
                frame.x0 <= box.x0
                and box.x1 <= frame.x1
                and frame.y0 <= box.y0
                and box.y1 <= frame.y1
            )
            cost = clash + (0 if inside else 2)
            if best is None or cost < best[0]:
                best = (cost, dx, dy, horizontal, vertical, box)
            if cost == 0:
                break
        _, dx, dy, horizontal, vertical, box = best
        text.set(position=(dx, dy), ha=horizontal, va=vertical)
        taken.append(box)
        if abs(dx) > 14 or abs(dy) > 14:  # far from its marker: a thin line says whose it is
            axes.annotate(
                "",
                text.xy,
                xytext=(dx, dy),
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": text.get_color(), "lw": 0.5, "alpha": 0.6},
            )

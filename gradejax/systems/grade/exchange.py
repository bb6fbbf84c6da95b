"""Another expert on an agent's seat of a trained system: its adapter and statistics, no gate."""

import dataclasses
import numbers
import os
import warnings
from typing import Any

import numpy as np

from gradejax.coordination import calibration as calibration_lib
from gradejax.coordination import swap as swap_lib
from gradejax.experts.ask import Request
from gradejax.experts.spec import ExpertSpec
from gradejax.systems import asking
from gradejax.systems.description import find_model

ALIGN = ("keep", "ridge")
R2_WARNING = 0.5  # below it a swapped agent's messages are mostly unlike the old ones


_FIT_ROWS = 3  # see coordination.swap.align


def _check(system, seat: str, align, held_out) -> None:
    seats = system.seats
    if seat == seats[-1]:
        raise ValueError(
            f"{seat!r} is the orchestrator, whose trunk encodes the questions; it cannot be "
            f"swapped. Choose from {', '.join(seats[:-1])}"
        )
    if align is not None and align not in ALIGN:
        raise ValueError(
            f"unknown align {align!r}; choose from {', '.join(map(repr, ALIGN))}, or None to choose"
        )
    if not isinstance(held_out, numbers.Real) or not 0 <= held_out < 1:
        raise ValueError(f"held_out must be a share in [0, 1), got {held_out!r}")


def _spec(system, seat: str, given) -> ExpertSpec:
    """The new expert; of a folder, one that is asked as the seat's own expert is."""
    if isinstance(given, ExpertSpec):
        return given
    if not isinstance(given, str | os.PathLike):
        raise ValueError(
            f"swap expects a gradejax.ExpertSpec or the path of a model's folder, got {given!r}"
        )
    path = find_model(os.fspath(given))
    if not os.path.exists(path):
        raise ValueError(
            f"swap of {seat!r}: there is no model folder {path!r}; for a model on the hub or "
            "behind an API pass a gradejax.ExpertSpec"
        )
    old = system.frozen.registry[seat]
    return dataclasses.replace(old, model=path, revision=None, provider="local", api=None)


def _held_out(exists: np.ndarray, share: float) -> np.ndarray:
    """[N] bool: that share of the anchors that exist, to the nearest one and at least one of
    several (none for 0), spread evenly."""
    rows = np.flatnonzero(exists)
    count = round(share * len(rows))
    if share > 0 and len(rows) > 1:
        count = max(count, 1)
    test = np.zeros(len(exists), bool)
    if count:
        test[rows[((np.arange(count) + 0.5) * len(rows) / count).astype(int)]] = True
    return test


def exchange(system, seat: str, spec, *, align: str | None, held_out: float, force: bool = False
             ) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """(The system with ``spec`` on ``seat``, a report); see ``GradeSystem.swap``.

    Args:
      system: a GradeSystem with anchors.
      seat, spec, align, held_out, force: as there.
    """
    _check(system, seat, align, held_out)
    spec = _spec(system, seat, spec)
    registry = system.frozen.registry.swap(seat, spec)
    index = system.seats.index(seat)
    frozen = dataclasses.replace(system.frozen, registry=registry)
    same = frozen.weights(registry[seat]) == system.frozen.weights(system.frozen.registry[seat])
    width = frozen.pool().widths[index]
    network = system.params.network["params"]
    phi = network["adapters"][f"agent_{index}"]
    kernel, bias = (np.asarray(phi[k], np.float64) for k in ("kernel", "bias"))
    fits = width == kernel.shape[0]
    kind = align or ("keep" if same or fits else "ridge")
    if kind == "keep" and not fits:
        raise ValueError(
            f"align='keep' needs features of width {kernel.shape[0]}; the new expert's have "
            f"{width}: use 'ridge'"
        )
    exists = system.anchors.available[:, index]
    test = _held_out(exists, held_out)
    left = int((exists & ~test).sum())
    if kind == "ridge" and left < _FIT_ROWS:
        raise ValueError(
            f"held_out={held_out} leaves {left} of {int(exists.sum())} anchors to fit on; ridge "
            f"needs at least {_FIT_ROWS}"
        )
    queries = [asking.messages_of(e, system.task) for e in system.anchors.questions]
    replies = asking.ask_seats(frozen, [Request(seat, q.id, q.expert) for q in queries])
    new = np.stack([r.hidden for r in replies]).astype(np.float64)
    old = system.anchors.features[index].astype(np.float64) @ kernel + bias
    report: dict[str, Any] = {"align": kind, "penalty": None}
    if kind == "ridge":
        fit = swap_lib.align(new[exists], old[exists], test[exists])
        kernel, bias = fit.kernel, fit.bias
        report |= {"penalty": fit.penalty, "held_out_r2": fit.held_out_r2}
    else:
        rows = exists & test
        r2 = swap_lib.r_squared(new[rows] @ kernel + bias, old[rows]) if rows.any() else np.nan
        report["held_out_r2"] = float(r2)
    # The same weights under another seed say other things; their adapter is right all the same.
    if report["held_out_r2"] < 0 and not same and not force:
        if all(registry[seat].identity != s.identity for s in system.frozen.registry.seats):
            frozen.models.release(registry[seat])  # nobody else has it
        other = "align='ridge' fits an adapter, and " if kind == "keep" else ""
        raise ValueError(
            f"swap of {seat!r} refused: on held-out anchors the new expert's messages have an R² "
            f"of {report['held_out_r2']:.2f} against the old agent's (align={kind!r}; below 0 is "
            f"worse than their mean); {other}force=True swaps all the same"
        )
    if report["held_out_r2"] < R2_WARNING and not same:
        warnings.warn(
            f"swap of {seat!r}: on held-out anchors the new expert's messages explain only "
            f"{report['held_out_r2']:.2f} of the old agent's (R²); check accuracy before use",
            stacklevel=3,
        )
    messages = new @ kernel + bias
    mean, sigma = np.array(system.calibration.mean), np.array(system.calibration.sigma)
    mean[index], sigma[index] = messages.mean(0), messages.std(0)
    adapters = network["adapters"] | {
        f"agent_{index}": {"kernel": kernel.astype(mean.dtype), "bias": bias.astype(mean.dtype)}
    }
    params = system.params.replace(network={"params": network | {"adapters": adapters}})
    features = list(system.anchors.features)
    features[index] = new.astype(np.float32)
    swapped = dataclasses.replace(
        system, frozen=frozen, shape=dataclasses.replace(system.shape, pool=frozen.pool()),
        params=params, calibration=calibration_lib.Calibration(mean=mean, sigma=sigma),
        anchors=dataclasses.replace(system.anchors, features=tuple(features)),
    )  # fmt: skip
    return swapped, report

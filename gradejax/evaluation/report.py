"""From outcomes to results.json and the printed table.

    {"questions": n,
     "systems": {name: {"accuracy", "ci95": [low, high], "accuracy_by_seed": [..], "agents",
                        "depth", "tokens", "active_params", "coverage",
                        "by_family": {family: {"accuracy", "right", "questions"}}}},
     "differences": {"grade - <baseline>": {"difference", "ci95", "questions"}},
     "notes": {..}}

Accuracies, intervals and coverage are fractions; agents, depth, tokens and active_params are means
per covered question. A number that is not known (nothing covered) is null, never 0.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from gradejax.evaluation import metrics
from gradejax.evaluation.outcome import SystemOutcome
from gradejax.evaluation.statistics import bootstrap_means, percentile_interval, weighted_mean

COMPARED_WITH = (
    "best_single",
    "majority_vote",
    "family_best",
    "router_logistic",
    "router_knn",
    "random",
    "oracle",
)
COSTS = ("agents", "depth", "tokens", "active_params")
_COLUMNS = 8  # families shown beside the costs; more would make the table unreadable


def build_results(
    systems: Mapping[str, Sequence[SystemOutcome]],
    families: Sequence[str],
    *,
    subject: str = "grade",
    compared_with: Sequence[str] = COMPARED_WITH,
    ci_draws: Mapping[str, Sequence[SystemOutcome]] | None = None,
    notes: Mapping | None = None,
    replicates: int = 10_000,
    seed: int = 0,
) -> dict:
    """The results dict above.

    Args:
        systems: {name: one outcome per training seed}, all on the same questions (any row order).
            Seeds of a system are averaged per question before the bootstrap, so its interval is
            that of the mean over seeds; the spread over seeds is `accuracy_by_seed`.
        families: names, indexed by the outcome's `family`.
        subject: the system whose differences are reported, first − second, on the questions both
            cover; baselines of `compared_with` that are not among the systems are left out.
        ci_draws: {name: outcomes}: for a system whose `systems` entry is an exact expectation, many
            sampled runs of it. Its interval then comes from them, one draw per replicate, and so
            holds the chance of the draw too.
    Raises: ValueError if two outcomes are not on the same questions, or ids repeat.
    """
    if not systems or any(not runs for runs in systems.values()):
        raise ValueError("systems: expected at least one, each with at least one outcome")
    order = {name: [_by_id(name, run) for run in runs] for name, runs in systems.items()}
    draws = {name: [_by_id(name, run) for run in runs] for name, runs in (ci_draws or {}).items()}
    first_name, (first, *_) = next(iter(order.items()))
    for name, run in (
        (n, r) for group in (order, draws) for n, runs in group.items() for r in runs
    ):
        if not np.array_equal(run.ids, first.ids):
            raise ValueError(
                f"system {name!r} was not evaluated on the same questions as {first_name!r}"
            )

    pooled = {name: _pool_seeds(runs) for name, runs in order.items()}
    rivals = [
        name for name in compared_with if name in pooled and name != subject and subject in pooled
    ]
    values = [v for v, _ in pooled.values()] + [pooled[subject][0] - pooled[r][0] for r in rivals]
    weights = [w for _, w in pooled.values()] + [pooled[subject][1] * pooled[r][1] for r in rivals]
    samples = bootstrap_means(np.array(values), np.array(weights), replicates=replicates, seed=seed)

    out: dict = {
        "questions": int(len(first.ids)),
        "systems": {},
        "differences": {},
        "notes": dict(notes or {}),
    }
    for i, (name, runs) in enumerate(order.items()):
        series = _draw_samples(draws[name], replicates, seed) if name in draws else samples[:, i]
        out["systems"][name] = _system_entry(
            runs, draws.get(name), values[i], weights[i], series, families
        )
    for i, name in enumerate(rivals, start=len(order)):
        out["differences"][f"{subject} - {name}"] = {
            "difference": weighted_mean(values[i], weights[i]),
            "ci95": _bounds(samples[:, i]),
            "questions": int((weights[i] > 0).sum()),
        }
    return _plain(out)


def _by_id(name: str, outcome: SystemOutcome) -> SystemOutcome:
    """Valid rows in the order of their ids: padding gone, pairing by id."""
    rows = np.flatnonzero(outcome.valid)
    rows = rows[np.argsort(outcome.ids[rows], kind="stable")]
    ids = outcome.ids[rows]
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if repeated.size:
        raise ValueError(
            f"system {name!r}: question id {repeated[0]} occurs more than once; rows that only "
            "fill a batch must have valid False, or the accuracy depends on the batch size"
        )
    return SystemOutcome(
        **{field: getattr(outcome, field)[rows] for field in outcome.__dataclass_fields__}
    )


def _pool_seeds(runs: Sequence[SystemOutcome]) -> tuple[np.ndarray, np.ndarray]:
    """Per question the mean correctness over the seeds that cover it, and their share: [Q], [Q]."""
    covered = np.sum([r.covered for r in runs], 0)
    right = np.sum([r.correct * r.covered for r in runs], 0)
    return right / np.maximum(covered, 1), covered / len(runs)


def _draw_samples(runs: Sequence[SystemOutcome], replicates: int, seed: int) -> np.ndarray:
    """Bootstrap means [B]: replicate b is resample b of sampled run b mod S."""
    stacked = np.array([r.correct for r in runs]), np.array([r.covered for r in runs], float)
    means = bootstrap_means(*stacked, replicates=replicates, seed=seed)
    return means[np.arange(replicates), np.arange(replicates) % len(runs)]


def _system_entry(runs, drawn, values, weights, samples, families) -> dict:
    by_family = [metrics.accuracy_by_family(r, len(families)) for r in runs]
    right, count = np.sum([f.sum for f in by_family], 0), np.sum([f.count for f in by_family], 0)
    mean = metrics.SumCount(right, count).mean()
    seen = np.sum([r.covered for r in runs])
    entry = {
        "accuracy": weighted_mean(values, weights),
        "ci95": _bounds(samples),
        "accuracy_by_seed": [float(metrics.accuracy(r).mean()) for r in (drawn or runs)][
            : max(len(runs), 3)
        ],
        "coverage": float(np.mean([metrics.coverage(r).mean() for r in runs])),
        "by_family": {
            name: {
                "accuracy": mean[i],
                "right": right[i] / len(runs),
                "questions": count[i] / len(runs),
            }
            for i, name in enumerate(families)
        },
    }
    for cost in COSTS:
        total = np.sum([getattr(r, cost)[r.covered].sum() for r in runs])
        entry[cost] = total / seen if seen else math.nan
    return entry


def _bounds(samples) -> list[float]:
    low, high = percentile_interval(samples)
    return [float(low), float(high)]


def _plain(value):
    """JSON-ready copy: Python numbers and lists, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(results: Mapping, path: str | os.PathLike) -> None:
    """Write sorted JSON so that `path` holds the old file or the whole new one, never a part."""
    path = Path(path)
    text = json.dumps(_plain(results), sort_keys=True, indent=2, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes it private to this user
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def results_table(results: Mapping) -> Table:
    """The systems, best first; accuracies in percent."""
    systems = results["systems"]
    families = shown_families(results)
    partial = any(entry["coverage"] != 1 for entry in systems.values())
    title = f"{results['questions']} questions, 95% bootstrap intervals over questions"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("system", no_wrap=True)
    heads = [
        "accuracy",
        "95% interval",
        "seeds",
        *families,
        "agents",
        "depth",
        "tokens",
        "active params",
    ]
    for head in heads + (["coverage"] if partial else []):
        table.add_column(head, justify="right")
    for name, e in sorted(systems.items(), key=lambda item: -(item[1]["accuracy"] or 0.0)):
        seeds = e["accuracy_by_seed"]
        spread = (
            f"{_percent(min(seeds))}–{_percent(max(seeds))}"
            if len(seeds) > 1 and None not in seeds
            else ""
        )
        cells = [
            _percent(e["accuracy"]),
            f"{_percent(e['ci95'][0])}–{_percent(e['ci95'][1])}",
            spread,
        ]
        cells += [_percent(e["by_family"][family]["accuracy"]) for family in families]
        cells += [_number(e[cost]) for cost in COSTS] + (
            [_percent(e["coverage"])] if partial else []
        )
        table.add_row(name, *cells, style="bold" if name == "grade" else None)
    return table


def shown_families(results: Mapping) -> list[str]:
    """The families that get a column: those with a question here, or none when there are many.

    Training questions may have families of which none is held out.
    """
    by_family = next(iter(results["systems"].values()))["by_family"]
    there = [name for name, entry in by_family.items() if entry["questions"]]
    return there if len(there) <= _COLUMNS else []


def sentences(results: Mapping) -> list[str]:
    """What a reader of the table must know."""
    out = []
    by_family = next(iter(results["systems"].values()))["by_family"]
    there = sum(bool(entry["questions"]) for entry in by_family.values())
    if there > _COLUMNS:
        out.append(f"accuracy by each of the {there} families is in results.json")
    if results["notes"].get("options") and {"grade", "oracle"} <= set(results["systems"]):
        out.append(
            "the questions have options: grade may choose one that no expert named, so it can "
            "exceed the oracle, which is right where some expert is"
        )
    return out


def differences_table(results: Mapping) -> Table:
    """Paired differences in percentage points."""
    table = Table(title="paired differences, percentage points", box=box.SIMPLE_HEAD)
    for head in ("difference", "points", "95% interval", "questions"):
        table.add_column(head, justify="left" if head == "difference" else "right")
    for name, e in results["differences"].items():
        low, high = (_percent(bound, sign=True) for bound in e["ci95"])
        table.add_row(
            name, _percent(e["difference"], sign=True), f"{low} to {high}", str(e["questions"])
        )
    return table


def print_results(results: Mapping, console: Console | None = None) -> None:
    """Print both tables; a file or pipe, which has no width, gets room for all columns."""
    console = console or Console()
    if not console.is_terminal and not console.record:
        console.width = max(console.width, 160)
    console.print(results_table(results))
    for sentence in sentences(results):
        console.print(sentence, markup=False)
    if results["differences"]:
        console.print(differences_table(results))


def _percent(value: float | None, *, sign: bool = False) -> str:
    return "n/a" if value is None else f"{100 * value:{'+' if sign else ''}.1f}"


def _number(value: float | None) -> str:
    """Three significant digits with K, M or B."""
    if value is None:
        return "n/a"
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.2f}"

"""GRADE beside everything it must be compared with, on the same held-out questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradejax.evaluation import baselines, metrics, routers
from gradejax.evaluation.outcome import SystemOutcome, agent_names, check_pool
from gradejax.evaluation.report import build_results
from gradejax.types import Pool, Records

RANDOM_DRAWS = 200


def baseline_outcomes(
    test: Records,
    pool: Pool,
    *,
    train: Records | None = None,
    train_query=None,
    test_query=None,
    groups: Mapping[str, Sequence[str]] | None = None,
    budget: int | None = None,
    families: Sequence[str] | None = None,
    seed: int = 0,
) -> tuple[dict[str, SystemOutcome], dict]:
    """Every baseline by its name in results.json, and notes on what each was allowed to see.

    Args:
        train, train_query [N, E], test_query [Q, E]: for the two supervised routers; all or none.
        groups: {label: agents that share a model} for "self_consistency:<label>", with `budget`
            calls (a group smaller than the budget uses all of it).
        families: names for the notes; default the numbers.
    """
    check_pool(test, pool)
    names = agent_names(pool)
    out = {f"single:{name}": baselines.single(test, pool, name) for name in names}
    out["best_single"] = baselines.best_single(test, pool)
    out["majority_vote"] = baselines.vote(test, pool)
    out["random"] = baselines.random_expected(test, pool)
    out["family_best"] = baselines.family_best(test, pool)
    out["oracle"] = baselines.oracle(test, pool)
    for label, group in (groups or {}).items():
        calls = None if budget is None else min(budget, len(group))
        out[f"self_consistency:{label}"] = baselines.self_consistency(test, pool, group, calls)
    chosen = baselines.family_best_columns(test, pool)
    best = baselines.best_column(test, pool)
    best = baselines.best_column(test, pool)
    notes = {
        "best_single": f"{names[best]}, chosen with hindsight on these questions",
        "family_best": {
            str(
                families[f] if families else f
            ): f"{names[c]}, chosen with hindsight on these questions"
            for f, c in chosen.items()
        },
        "oracle": "right where any single agent is; hindsight",
        "random": "exact expectation; interval and accuracy_by_seed from sampled draws",
        "pool_active_params": pool.total_params,
        "outcomes": {
            name: {kind: int(count[i]) for kind, count in metrics.outcome_counts(test).items()}
            for i, name in enumerate(names)
        },
    }
    given = [part is not None for part in (train, train_query, test_query)]
    if any(given) and not all(given):
        raise ValueError("supervised routers need train, train_query and test_query, all three")
    if all(given):
        logistic = routers.router_logistic(train, train_query, test, test_query, pool, seed=seed)
        nearest = routers.router_knn(train, train_query, test, test_query, pool)
        out["router_logistic"], out["router_knn"] = logistic.outcome, nearest.outcome
        n_train = int(np.sum(np.asarray(train.valid, bool)))
        notes["router_logistic"] = (
            f"L2 {logistic.chosen:g} by cross-validation on {n_train} training questions"
        )
        notes["router_knn"] = (
            f"k = {nearest.chosen:g} by leave-one-out on {n_train} training questions"
        )
    return out, notes


def compare(
    systems: Mapping[str, Sequence[SystemOutcome]],
    test: Records,
    pool: Pool,
    families: Sequence[str],
    *,
    replicates: int = 10_000,
    seed: int = 0,
    notes: Mapping | None = None,
    **baseline_options,
) -> dict:
    """Results dict (see `report`) of `systems` {name: one outcome per seed} and all baselines.

    baseline_options: train, train_query, test_query, groups, budget of `baseline_outcomes`.
    """
    found, said = baseline_outcomes(test, pool, families=families, seed=seed, **baseline_options)
    clash = sorted(set(found) & set(systems))
    if clash:
        raise ValueError(f"systems: the names {clash} belong to baselines")
    draws = [baselines.random_sampled(test, pool, seed + i) for i in range(RANDOM_DRAWS)]
    return build_results(
        {**systems, **{name: [outcome] for name, outcome in found.items()}},
        families,
        ci_draws={"random": draws},
        notes={**said, **(notes or {})},
        replicates=replicates,
        seed=seed,
    )

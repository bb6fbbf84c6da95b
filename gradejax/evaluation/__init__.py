"""Evaluation: baselines, intervals and the report. Host side, in numpy."""

from gradejax.evaluation.baselines import (
    best_single,
    family_best,
    oracle,
    random_expected,
    random_sampled,
    self_consistency,
    single,
    vote,
)
from gradejax.evaluation.evaluate import baseline_outcomes, compare
from gradejax.evaluation.figure import save_figure
from gradejax.evaluation.outcome import SystemOutcome, outcome_from_decisions
from gradejax.evaluation.report import build_results, print_results, write_json
from gradejax.evaluation.routers import router_knn, router_logistic
from gradejax.evaluation.statistics import difference_interval, mean_interval, seed_spread

__all__ = [
    "SystemOutcome",
    "baseline_outcomes",
    "best_single",
    "build_results",
    "compare",
    "difference_interval",
    "family_best",
    "mean_interval",
    "oracle",
    "outcome_from_decisions",
    "print_results",
    "random_expected",
    "random_sampled",
    "router_knn",
    "router_logistic",
    "save_figure",
    "seed_spread",
    "self_consistency",
    "single",
    "vote",
    "write_json",
]

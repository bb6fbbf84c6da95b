"""Objectives: pure functions of arrays. They see no model, no gate and no config."""

from gradejax.objectives.advantages import (
    AdvantageStats,
    abs_from_constant_groups,
    dense_group_ids,
    group_relative,
    grouped,
    share_with_turns,
    update_ema,
    validate_groups,
)
from gradejax.objectives.aggregation import aggregate, local_count
from gradejax.objectives.gae import generalized_advantages
from gradejax.objectives.kl import bernoulli_kl, categorical_kl, kl_estimate, kl_loss
from gradejax.objectives.rewards import CombinedReward, GradeReward, combine_parts, grade_reward
from gradejax.objectives.surrogates import (
    SurrogateStats,
    clipped_surrogate,
    log_ratios,
    reinforce_loss,
    token_surrogate,
)

__all__ = [
    "AdvantageStats",
    "CombinedReward",
    "GradeReward",
    "SurrogateStats",
    "abs_from_constant_groups",
    "aggregate",
    "bernoulli_kl",
    "categorical_kl",
    "clipped_surrogate",
    "combine_parts",
    "dense_group_ids",
    "generalized_advantages",
    "grade_reward",
    "group_relative",
    "grouped",
    "kl_estimate",
    "kl_loss",
    "local_count",
    "log_ratios",
    "reinforce_loss",
    "share_with_turns",
    "token_surrogate",
    "update_ema",
    "validate_groups",
]

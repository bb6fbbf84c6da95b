"""GRADE's settings; the defaults are the paper's Table 5, the rest are choices named [choice]."""

import dataclasses
import math

from gradejax.coordination.combination import READ_MASKS
from gradejax.coordination.cross_read import RELAXATIONS
from gradejax.objectives.advantages import BASELINES, SCALES
from gradejax.objectives.surrogates import RATIOS

COSTS = ("params", "token_params")


@dataclasses.dataclass(frozen=True)
class GradeConfig:
    """Static settings of the system.

    Attributes:
      d: width of messages, question states and the gates' hidden layers.
      group_size: G, rollouts of a question.
      inner_epochs: optimizer steps on each batch of rollouts.
      clip: half-width η of the surrogate's ratio clip.
      kl_weight: β.
      learning_rate: Adam's.
      max_grad_norm: global-norm clip; 0 is off, the paper's form.
      correct_weight: reward of a right answer.
      system_weight: λ_m, weight of log p_Θ(y*).
      agent_weight: λ_a, weight of the mean log p_a(y*).
      cost_weight: λ_c.
      log_prob_floor: clamp of the reward's log-probabilities, < 0.
      cost: "params" (parameters evaluated over the pool's), or "token_params" (parameters × tokens
        of the calls over those of asking everyone) [choice].
      balance_weight: λ_bal. depth_weight: λ_D. read_weight: λ_R.
      supervised_weight: of the cross-entropy of g on the realised rollout [choice: 1].
      assign_threshold: τ^A at inference [choice: the mode].
      prune_threshold: τ^P at inference.
      fixed_k: 0 asks a Bernoulli set; k > 0 asks exactly min(k, allowed) agents (Gumbel-top-k).
      read_mask: "additive" closes an edge; "multiplicative" is the printed form [choice].
      read_relaxation: "hard" edges are scored; "concrete" ones are differentiated [choice].
      read_temperature: ν.
      ratio: "component" or "decision".
      baseline: of the advantages. scale: of the advantages. ddof: of their spread.
      std_floor: σ_min; 0 is the paper's form (see BUILD_NOTES.md for what it does).
      ema_decay: of the baseline "ema".
      calibration_momentum: α.
      memory_slots: slots of the ring [choice].
      anchors: training questions whose features are kept for swapping experts.
    """

    d: int = 64
    group_size: int = 8
    inner_epochs: int = 2
    clip: float = 0.2
    kl_weight: float = 0.02
    learning_rate: float = 1e-4
    max_grad_norm: float = 0.0
    correct_weight: float = 2.0
    system_weight: float = 0.10
    agent_weight: float = 0.05
    cost_weight: float = 0.05
    log_prob_floor: float = -5.0
    cost: str = "params"
    balance_weight: float = 0.01
    depth_weight: float = 0.02
    read_weight: float = 0.01
    supervised_weight: float = 1.0
    assign_threshold: float = 0.5
    prune_threshold: float = 0.35
    fixed_k: int = 0
    read_mask: str = "additive"
    read_relaxation: str = "hard"
    read_temperature: float = 1.0
    ratio: str = "component"
    baseline: str = "group_mean"
    scale: str = "std"
    ddof: int = 0
    std_floor: float = 0.0
    ema_decay: float = 0.9
    calibration_momentum: float = 0.05
    memory_slots: int = 256
    anchors: int = 64

    def __post_init__(self):
        for name, choices in (
            ("cost", COSTS), ("read_mask", READ_MASKS), ("read_relaxation", RELAXATIONS),
            ("ratio", RATIOS), ("baseline", BASELINES), ("scale", SCALES),
        ):  # fmt: skip
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"grade.{name} must be one of {', '.join(choices)}; got "
                    f"{getattr(self, name)!r}"
                )
        for field in dataclasses.fields(self):
            # An infinite clip turns it off; an infinite rate or weight only ends in NaN.
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value) and field.name != "clip":
                raise ValueError(f"grade.{field.name} must be a finite number; got {value}")
        for name, low in (
            ("d", 1), ("group_size", 2), ("inner_epochs", 1), ("memory_slots", 1), ("anchors", 1),
            ("fixed_k", 0), ("clip", 0), ("kl_weight", 0), ("cost_weight", 0), ("std_floor", 0),
            ("max_grad_norm", 0), ("supervised_weight", 0), ("balance_weight", 0),
            ("depth_weight", 0), ("read_weight", 0), ("system_weight", 0), ("agent_weight", 0),
        ):  # fmt: skip
            if not getattr(self, name) >= low:
                raise ValueError(f"grade.{name} must be at least {low}; got {getattr(self, name)}")
        for name in ("assign_threshold", "prune_threshold", "ema_decay", "calibration_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"grade.{name} must be in [0, 1]; got {getattr(self, name)}")
        for name in ("learning_rate", "read_temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"grade.{name} must be > 0; got {getattr(self, name)}")
        if not self.log_prob_floor < 0:
            raise ValueError(f"grade.log_prob_floor must be < 0; got {self.log_prob_floor}")

"""Who an expert is: a frozen description of one language model in one seat of the pool."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import NamedTuple

from gradejax.experts.endpoint import Endpoint
from gradejax.generation.decode import POOLINGS
from gradejax.generation.sampling import GREEDY, Sampling

PROVIDERS = ("local", "openai")
DTYPES = ("float32", "bfloat16", "float16", "float64")

# GRADE's expert prompt (design section 5). The orchestrator has no system prompt.
DEFAULT_SYSTEM_PROMPT = (
    "You are a domain expert. Reason step by step, then end with your final answer on a new line "
    "as ANSWER: <value>."
)


class ModelIdentity(NamedTuple):
    """What two seats must have in common to share one copy of the weights in memory."""

    provider: str
    model: str  # absolute path for a folder on this machine, else the name as written
    revision: str | None
    dtype: str
    server: str = ""  # address of an API


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertSpec:
    """One seat of the pool: which model sits there and how it is asked.

    Attributes:
      name: the seat's name, unique in a registry ("A1").
      model: folder in Hugging Face format, or the provider's model name.
      revision: version of `model`, None for whatever is there.
      provider: who runs the model, one of PROVIDERS; "local" is our engine, "openai" any server
        with an OpenAI-compatible API.
      dtype: dtype of the weights in memory.
      system_prompt: replaces the system message of the task's prompt; "" removes it. None (the
        default) keeps what the task's prompt function made, which for experts is
        `DEFAULT_SYSTEM_PROMPT` and for the orchestrator no system message [GRADE].
      chat_template: None for the model's own, a jinja template, or "plain" for base models.
      sampling: temperature (0 = greedy), top-k, top-p.
      seed: base of the per-prompt seeds; seats that share a model differ by it.
      manager: who owns the seat; None for the orchestrator only.
      max_new_tokens: limit of a reply, in tokens, at least 1.
      pooling: how the last layer's states over the generated tokens become one feature vector; an
        expert behind an API shows no states, and its feature is an embedding of its reply.
      api: the server of an "openai" expert, None for others. `dtype` and `pooling` say nothing
        there, and `chat_template` must be None: the server renders.

    Raises: ValueError naming the field, what it got and what it expects.
    """

    name: str
    model: str
    revision: str | None = None
    provider: str = "local"
    dtype: str = "float32"
    system_prompt: str | None = None
    chat_template: str | None = None
    sampling: Sampling = GREEDY
    seed: int = 0
    manager: str | None = None
    max_new_tokens: int = 256
    pooling: str = "mean"
    api: Endpoint | None = None

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(f"expert name must be a non-empty string, got {self.name!r}")
        if not isinstance(self.model, str) or not self.model.strip():
            raise ValueError(f"expert {self.name!r}: model must be a folder or a model name, "
                             f"got {self.model!r}")
        for field, choices in (("provider", PROVIDERS), ("dtype", DTYPES), ("pooling", POOLINGS)):
            if getattr(self, field) not in choices:
                raise ValueError(f"expert {self.name!r}: unknown {field} "
                                 f"{getattr(self, field)!r}; choose from {list(choices)}")
        for field, low in (("max_new_tokens", 1), ("seed", 0)):
            value = getattr(self, field)
            # bool is an int: `seed=True` would pass and later hash unlike 1.
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"expert {self.name!r}: {field} must be an integer of at least "
                                 f"{low}, got {value!r}")
        if not isinstance(self.sampling, Sampling):
            raise ValueError(f"expert {self.name!r}: sampling must be a Sampling, "
                             f"got {type(self.sampling).__name__}")
        if not math.isfinite(self.sampling.temperature):
            raise ValueError(f"expert {self.name!r}: sampling.temperature must be a finite number "
                             f">= 0 (0 is greedy), got {self.sampling.temperature}")
        for field in ("system_prompt", "chat_template", "revision", "manager"):
            value = getattr(self, field)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"expert {self.name!r}: {field} must be a string or None, "
                                 f"got {value!r}")
        self._check_api()

    def _check_api(self):
        if self.remote != isinstance(self.api, Endpoint):
            raise ValueError(f"expert {self.name!r}: provider {self.provider!r} needs "
                             + ("api with at least a base_url" if self.remote else
                                "no api; it belongs to the provider 'openai'"))
        if self.remote and self.chat_template is not None:
            raise ValueError(f"expert {self.name!r}: chat_template must be None with the provider "
                             "'openai'; the server renders the messages")

    @property
    def remote(self) -> bool:
        """Whether the model runs elsewhere: no weights, states or tokens here."""
        return self.provider == "openai"

    @property
    def identity(self) -> ModelIdentity:
        """Seats with equal identities share one copy in memory.

        Folders are compared by their real path, so that "checkpoints/a" and "./checkpoints/a/"
        are not loaded twice.
        """
        local = self.provider == "local" and os.path.isdir(self.model)
        model = os.path.realpath(self.model) if local else self.model
        server = self.api.base_url if self.remote else ""
        return ModelIdentity(self.provider, model, self.revision, self.dtype, server)

    def messages(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """The chat messages this seat is asked with: `system_prompt` put in place of theirs."""
        if self.system_prompt is None:
            return [dict(m) for m in messages]
        rest = [dict(m) for m in messages if m["role"] != "system"]
        head = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return head + rest

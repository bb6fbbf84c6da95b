"""The provider "local": frozen models in this process, asked through our engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradejax.experts.model_pool import LoadedModel, ModelPool
from gradejax.experts.replies import Missing, PromptTooLong, Reply
from gradejax.experts.spec import ExpertSpec
from gradejax.generation.decode import generate as engine_generate


class LocalProvider:
    """Turns chat messages into replies of a model in memory.

    Args:
      models: where the models are, or are loaded on first use.
      generate: the engine (`generation.decode.generate`); tests bring a fake.
      batch_size: rows generated at once.
    """

    def __init__(self, models: ModelPool, *, generate: Callable = engine_generate,
                 batch_size: int = 64):
        self.models = models
        self.batch_size = batch_size
        self._generate = generate

    def describe(self, spec: ExpertSpec) -> Mapping[str, Any]:
        """What of the model goes into a reply's key.

        Digests stand for the folder's name and revision: a moved checkpoint keeps its records,
        and another one at the same place never gets them.
        """
        return {"provider": spec.provider, "dtype": spec.dtype, **self.models.get(spec).digests}

    def render(self, spec: ExpertSpec, messages: list[dict[str, str]]) -> str:
        """The prompt as text, through the model's chat template.

        Raises: ValueError when the model has no tokenizer.
        """
        return self._chat(spec).render(messages)

    def encode(self, spec: ExpertSpec, messages: list[dict[str, str]], question_id: str
               ) -> list[int]:
        """The prompt as ids.

        Raises: PromptTooLong when the prompt and `max_new_tokens` do not fit the context; a cut
          prompt is another question, and past the context the text is noise.
        """
        tokens = self._chat(spec).encode(messages)
        context = self.models.get(spec).context
        if len(tokens) + spec.max_new_tokens > context:
            raise PromptTooLong(
                f"question {question_id!r}, expert {spec.name!r}: the prompt has {len(tokens)} "
                f"tokens; with max_new_tokens={spec.max_new_tokens} that is more than the "
                f"context of {context} tokens of {spec.model!r}")
        return tokens

    def reply(self, spec: ExpertSpec, prompts: Sequence[list[int]], seeds: Sequence[int]
              ) -> list[Reply | Missing]:
        """Generate one reply for each prompt, in order.

        Args:
          spec: model, sampling, token limit and pooling; its seed is not used.
          prompts: N lists of ids.
          seeds: N row seeds in [0, 2³¹).
        """
        loaded = self.models.get(spec)
        start = time.perf_counter()
        rows = self._generate(
            loaded.model, loaded.params, list(prompts), max_new_tokens=spec.max_new_tokens,
            stop_ids=loaded.stop_ids, sampling=spec.sampling,
            seeds=np.asarray(seeds, np.int32), pooling=spec.pooling, batch_size=self.batch_size)
        seconds = (time.perf_counter() - start) / max(len(prompts), 1)
        # zip would let every later reply slip to its neighbour's question.
        if len(rows) != len(prompts):
            raise RuntimeError(f"the engine gave {len(rows)} replies to {len(prompts)} prompts")
        return [_reply(loaded, row, len(p), seconds) for row, p in zip(rows, prompts, strict=True)]

    def _chat(self, spec: ExpertSpec):
        chat = self.models.get(spec).chat
        if chat is None:
            raise ValueError(f"expert {spec.name!r}: {spec.model!r} has no tokenizer "
                             "(tokenizer.json), so it cannot be asked questions")
        return chat


def _reply(loaded: LoadedModel, row: Any, prompt_tokens: int, seconds: float) -> Reply | Missing:
    hidden, logprobs = np.asarray(row.hidden), np.asarray(row.logprobs, np.float32)
    if not (np.isfinite(hidden).all() and np.isfinite(logprobs).all()):
        # One NaN would spread through the running statistics to every question.
        return Missing("malformed", "the model gave a state or log-probability that is not finite")
    tokens = np.asarray(row.tokens, np.int32)
    text = loaded.tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
    return Reply(text=text, tokens=tokens, logprobs=logprobs, finish_reason=row.finish_reason,
                 hidden=hidden, prompt_tokens=prompt_tokens, seconds=seconds)

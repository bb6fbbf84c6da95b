"""The provider "local": frozen models in this process, asked through our engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradejax.experts.model_pool import ModelPool
from gradejax.experts.replies import Missing, PromptTooLong, Reply
from gradejax.experts.spec import ExpertSpec, ModelIdentity
from gradejax.generation.decode import generate as engine_generate
from gradejax.generation.text import Chat


class LocalProvider:
    """Turns chat messages into replies of a model in memory.

    Args:
      models: where the models are, or are loaded on first use.
      generate: the engine (`generation.decode.generate`); tests bring a fake.
      make_chat: makes a `generation.text.Chat` of a tokenizer; tests bring a fake.
      batch_size: rows generated at once.
    """

    def __init__(self, models: ModelPool, *, generate: Callable = engine_generate,
                 make_chat: Callable = Chat, batch_size: int = 64):
        self.models = models
        self.batch_size = batch_size
        self._generate, self._make_chat = generate, make_chat
        self._chats: dict[tuple[ModelIdentity, str | None], Chat] = {}
        self._facts: dict[ExpertSpec, Mapping[str, Any]] = {}

    def describe(self, spec: ExpertSpec) -> Mapping[str, Any]:
        """What of the model goes into a reply's key.

        Digests stand for the folder's name and revision: a moved checkpoint keeps its records,
        and another one at the same place never gets them.

        Raises: ValueError when the model has no tokenizer or no chat template.
        """
        chat = self.chat(spec)
        if spec not in self._facts:
            loaded = self.models.get(spec)
            self._facts[spec] = {
                "provider": spec.provider, "dtype": spec.dtype, "weights": loaded.digest,
                "text": chat.digest, "stop_ids": list(chat.stop_ids(loaded.stop_ids))}
        return self._facts[spec]

    def render(self, spec: ExpertSpec, messages: list[dict[str, str]]) -> str:
        """The prompt as text, through the chat template."""
        return self.chat(spec).render(messages)

    def encode(self, spec: ExpertSpec, prompt: str, question_id: str) -> list[int]:
        """The rendered prompt as ids.

        Raises: PromptTooLong when the prompt and `max_new_tokens` do not fit the context; a cut
          prompt is another question, and past the context the text is noise.
        """
        tokens = self.chat(spec).encode_text(prompt)
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
        loaded, chat = self.models.get(spec), self.chat(spec)
        start = time.perf_counter()
        rows = self._generate(
            loaded.model, loaded.params, list(prompts), max_new_tokens=spec.max_new_tokens,
            stop_ids=chat.stop_ids(loaded.stop_ids), sampling=spec.sampling,
            seeds=np.asarray(seeds, np.uint32), pooling=spec.pooling,
            batch_size=self.batch_size, vocab=chat.vocab)
        seconds = (time.perf_counter() - start) / max(len(prompts), 1)
        # zip would let every later reply slip to its neighbour's question.
        if len(rows) != len(prompts):
            raise RuntimeError(f"the engine gave {len(rows)} replies to {len(prompts)} prompts")
        return [_reply(chat, row, len(p), seconds) for row, p in zip(rows, prompts, strict=True)]

    def chat(self, spec: ExpertSpec) -> Chat:
        """The chat template and tokenizer of `spec`, for seats that share both one object.

        Raises: ValueError when the model has no tokenizer or no chat template.
        """
        key = (spec.identity, spec.chat_template)
        if key not in self._chats:
            self._chats[key] = self._make_chat(
                self.models.get(spec).tokenizer, name=f"expert {spec.name!r} ({spec.model})",
                template=spec.chat_template)
        return self._chats[key]


def _reply(chat: Chat, row: Any, prompt_tokens: int, seconds: float) -> Reply | Missing:
    hidden, logprobs = np.asarray(row.hidden), np.asarray(row.logprobs, np.float32)
    if not (np.isfinite(hidden).all() and np.isfinite(logprobs).all()):
        # One NaN would spread through the running statistics to every question.
        return Missing("malformed", "the model gave a state or log-probability that is not finite")
    return Reply(text=chat.decode(row.tokens), tokens=np.asarray(row.tokens, np.int32),
                 logprobs=logprobs, finish_reason=row.finish_reason, hidden=hidden,
                 prompt_tokens=prompt_tokens, seconds=seconds)

"""One frozen model by its name: texts in, replies, log-probabilities, states or logits out."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.generation import batches
from gradejax.generation.checks import (
    IDS,
    SEEDS,
    listed,
    number,
    one_of,
    stop_tokens,
    text,
    token_ids,
    whole,
)
from gradejax.generation.decode import generate, stream
from gradejax.generation.messages import Prompt, Reply, Score, as_list
from gradejax.generation.prompts import ropes_by_length, sample_seed
from gradejax.generation.sampling import Sampling
from gradejax.generation.score import lengths_as_drawn
from gradejax.generation.text import Chat, load_tokenizer
from gradejax.models.config import ids_of
from gradejax.models.decoder import Decoder
from gradejax.models.hf_weights import Checkpoint, load_checkpoint
from gradejax.models.lora import Lora, packed
from gradejax.models.peft import load_peft, warn_of_another_base
from gradejax.models.quantize import quantize
from gradejax.models.tensors import DTYPES


class LanguageModel:
    """A frozen model in memory; made by ``load_lm``.

    A prompt is a text, read as it stands (with the tokenizer's own special tokens, such as a BOS),
    or a chat, a list of ``{"role", "content"}`` that the model's chat template renders.

    Attributes:
      checkpoint: configuration, parameters and digest as loaded.
      model: the linen module; with ``params``, for use with the rest of the engine.
      tokenizer: None when the folder has none; then only ``logits`` works.
    """

    def __init__(self, checkpoint: Checkpoint, model: Decoder, tokenizer: Any, *,
                 chat_template: str | None = None, lora: Lora | None = None):
        self.checkpoint, self.model, self.tokenizer = checkpoint, model, tokenizer
        self._template, self._lora = chat_template, lora

    @property
    def params(self) -> Any:
        return self.checkpoint.params

    def __repr__(self) -> str:
        c = self.checkpoint
        return f"LanguageModel({c.path!r}, {c.config.family}, {c.n_params:,} parameters)"

    @functools.cached_property
    def chat(self) -> Chat:
        """The chat template.

        Raises: ValueError when the model has no tokenizer or no template.
        """
        return Chat(self.tokenizer, name=self.checkpoint.path, template=self._template)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a reply: of tokenizer, config and generation config (B03)."""
        stops = {*self.checkpoint.generation_stop_ids}
        stops |= {*ids_of(self._tokenizer("texts").eos_token_id)}
        return tuple(sorted(stops))

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt, exactly as the model is given them."""
        if isinstance(prompt, str):
            return list(self._tokenizer("texts")(text("the prompt", prompt))["input_ids"])
        if isinstance(prompt, Sequence) and prompt and all(
            isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in prompt
        ):
            return self.chat.encode(prompt)
        more, kinds = "", {*map(type, prompt)} if isinstance(prompt, Sequence) else set()
        if kinds == {int}:
            more = "; token ids are read by logits(input_ids)"
        elif kinds and kinds <= {str, list, tuple}:
            more = "; one prompt is wanted here, not a list of them"
        raise ValueError(
            "expected a prompt that is a text or a list of messages with role and content; got "
            f"{prompt!r:.200}{more}"
        )

    def generate(
        self, prompts: Prompt | Sequence[Prompt], *, max_new_tokens: int = 128,
        temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0,
        samples: int = 1, stop_ids: Sequence[int] | None = None, batch_size: int = 64,
    ) -> list[Reply] | list[list[Reply]]:  # fmt: skip
        """Replies to prompts.

        Args:
          prompts: a list of texts or chats; a single text or chat is a list of one.
          max_new_tokens: limit of a reply, its stop token included.
          temperature: 0 is greedy.
          top_k: keep the k most probable tokens; 0 keeps all.
          top_p: keep the smallest set of most probable tokens that reaches this mass.
          seed: 32 bits; prompt i is drawn with the seed ``sample_seed(seed, i)``, whatever the
            batch.
          samples: replies a prompt; the prompt is read once for all of them.
          stop_ids: in place of the model's own.
          batch_size: rows run at once, at most. On a CPU the first call of a shape compiles it.

        Returns:
          One Reply a prompt, or, with more than one sample, a list of them a prompt.

        Raises:
          ValueError: no tokenizer, an empty prompt, one that does not fit the context, or settings
            out of range; each says what was expected.
        """
        prompts, samples = as_list(prompts), whole("samples", samples)
        seed, sampling = whole("seed", seed, 0, SEEDS - 1), Sampling(temperature, top_k, top_p)
        stop_ids = self.stop_ids if stop_ids is None else stop_tokens(
            stop_ids, self.checkpoint.config.vocab_size)  # fmt: skip
        ids = [self.encode(p) for p in prompts]
        rows = generate(
            self.model, self.params, ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids,
            sampling=sampling,
            seeds=[sample_seed(seed, i) for i in range(len(ids))], samples=samples, pooling=None,
            batch_size=batch_size, vocab=self._vocab, lora=self._lora_of(len(ids)),
        )  # fmt: skip
        replies = [
            Reply(self.decode(r.tokens), r.tokens, r.logprobs, r.finish_reason,
                  len(ids[i // samples]))
            for i, r in enumerate(rows)
        ]  # fmt: skip
        if samples == 1:
            return replies
        return [replies[i : i + samples] for i in range(0, len(replies), samples)]

    def stream(
        self, prompt: Prompt, *, max_new_tokens: int = 128, temperature: float = 0.0,
        top_k: int = 0, top_p: float = 1.0, seed: int = 0, every: int = 1,
    ) -> Iterator[str]:  # fmt: skip
        """Pieces of one reply's text as it is drawn; together they are ``generate``'s text."""
        tokens = stream(
            self.model, self.params, self.encode(prompt), max_new_tokens=max_new_tokens,
            stop_ids=self.stop_ids, sampling=Sampling(temperature, top_k, top_p), seed=seed,
            vocab=self._vocab, lora=self._lora_of(1), every=every,
        )  # fmt: skip
        return self._pieces(tokens)

    def _pieces(self, tokens: Iterator[int]) -> Iterator[str]:
        said, ids = "", []
        for token in tokens:
            ids.append(token)
            text = self.decode(ids)
            # A character may take several tokens; its first ones decode to a mark of error.
            if len(text) > len(said) and not text.endswith("\ufffd"):
                yield text[len(said) :]
                said = text
        if len(text := self.decode(ids)) > len(said):
            yield text[len(said) :]

    def score(
        self, prompts: Prompt | Sequence[Prompt], completions: str | Sequence[str], *,
        temperature: float = 1.0, batch_size: int = 16,
    ) -> list[Score]:  # fmt: skip
        """Log-probability of each completion after its prompt, as ``generate`` would draw it.

        Args:
          prompts: texts or chats.
          completions: as many texts; tokenised on their own, without special tokens.
          temperature: > 0; logits are divided by it.
          batch_size: rows read at once.

        Raises:
          ValueError: unequal numbers, an empty prompt or completion, or one that does not fit.
        """
        temperature = number("temperature", temperature, "a number > 0 to score", 0, above=True)
        prompts, batch_size = as_list(prompts), whole("batch_size", batch_size)
        if isinstance(completions, str):
            completions = [completions]
        completions = listed("a completion or a list of them", completions)
        if len(prompts) != len(completions):
            raise ValueError(
                f"expected one completion a prompt: {len(prompts)} prompts, {len(completions)} "
                "completions"
            )
        pairs = []
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            head = self.encode(prompt)
            completion = text(f"completion {i}", completion)
            tail = list(self._tokenizer("texts")(completion, add_special_tokens=False)["input_ids"])
            if not head or not tail:
                which = "completion" if head else "prompt"
                raise ValueError(f"{which} {i} is empty; there is nothing to score")
            pairs.append((head, tail))
        whole_rows, config = [[*head, *tail] for head, tail in pairs], self.checkpoint.config
        batches.check_rows(config, whole_rows)
        out: list[Score | None] = [None] * len(pairs)
        for rows, tokens, mask in batches.batches(whole_rows, batch_size, config.max_positions):
            lengths = None
            if self._as_drawn:
                heads = np.asarray([len(pairs[i][0]) for i in rows])
                lengths = lengths_as_drawn(np.pad(heads, (0, len(mask) - len(rows))), mask)
            got = np.asarray(batches.score_rows(
                self.model, self.params, tokens, mask, self._lora_of(len(mask)), lengths,
                temperature=temperature, vocab=self._vocab))  # fmt: skip
            for r, i in enumerate(rows):
                head, tail = pairs[i]
                logprobs = got[r, len(head) : len(head) + len(tail)]
                out[i] = Score(float(logprobs.sum(dtype=np.float64)), tail, logprobs.tolist())
        return out

    def hidden(
        self, texts: Prompt | Sequence[Prompt], *, layer: int = -1, pool: str | None = "last",
        batch_size: int = 16,
    ) -> np.ndarray | list[np.ndarray]:  # fmt: skip
        """Hidden states.

        Args:
          texts: texts or chats.
          layer: as transformers counts ``hidden_states``: 0 the embeddings, -1 the last after the
            final norm.
          pool: "last", "first" or "mean" over a text's tokens; None keeps each token's state.
          batch_size: rows read at once.

        Returns:
          [n, E] float32, or with pool None a list of [T_i, E].
        """
        config, batch_size = self.checkpoint.config, whole("batch_size", batch_size)
        pool = one_of("pool", pool, batches.POOLS)
        layer = whole("layer", layer, -config.num_layers - 1, config.num_layers)
        ids = [self.encode(t) for t in as_list(texts)]
        batches.check_rows(config, ids)
        out: list[np.ndarray] = [np.empty(0)] * len(ids)
        for rows, tokens, mask in batches.batches(ids, batch_size, config.max_positions):
            got = np.asarray(
                batches.hidden_rows(self.model, self.params, tokens, mask,
                                    self._lora_of(len(mask)), layer=layer, pool=pool),
                np.float32)  # fmt: skip
            for r, i in enumerate(rows):
                out[i] = got[r] if pool is not None else got[r, : len(ids[i])]
        return out if pool is None else np.stack(out) if out else np.zeros((0, self.width))

    def logits(self, input_ids, attention_mask=None) -> jax.Array:
        """Logits of every place, [B, T, V]; no tokenizer is needed.

        Args:
          input_ids: [B, T] integers, at least one row of at least one.
          attention_mask: [B, T], 1 for real tokens (all by default); padding on either side.

        Raises:
          ValueError: shapes or values that do not fit, ids out of range, a row without a real
            token, or rows beyond the context.
        """
        ids, mask = batches.id_rows(input_ids, attention_mask, self.checkpoint.config)
        return batches.logits_rows(self.model, self.params, ids, mask, self._lora_of(len(ids)))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ids without special tokens."""
        ids = token_ids("tokens", tokens, IDS)
        return self._tokenizer("texts").decode(ids, skip_special_tokens=True)

    @property
    def width(self) -> int:
        return self.checkpoint.config.width

    @property
    def _vocab(self) -> int | None:
        """Ids from here on have no text and are never drawn."""
        return None if self.tokenizer is None else len(self.tokenizer)

    @property
    def _as_drawn(self) -> bool:
        """Whether keys turn by the length their row had when they were read.

        Not of longrope: a reply that would cross its original context is never drawn, so a row
        that does is read whole.
        """
        return any(r.kind == "dynamic" for r in ropes_by_length(self.checkpoint.config))

    def _tokenizer(self, what: str):
        if self.tokenizer is None:
            raise ValueError(
                f"{self.checkpoint.path} has no tokenizer, which {what} need: expected "
                "tokenizer.json or tokenizer.model beside config.json. logits(input_ids) works "
                "without one"
            )
        return self.tokenizer

    def _lora_of(self, rows: int) -> Lora | None:
        """The one adapter, for every row."""
        if self._lora is None:
            return None
        return self._lora.replace(weights=jnp.ones((rows, 1), jnp.float32))


def load_lm(
    path_or_id: str | pathlib.Path, *, dtype: Any = "float32", revision: str | None = None,
    chat_template: str | None = None, int8: bool = False,
    adapter: str | pathlib.Path | None = None, ignore: Sequence[str] = (),
) -> LanguageModel:  # fmt: skip
    """Load a frozen language model.

    Args:
      path_or_id: a Hugging Face folder, a .gguf file, or ``owner/name`` on the hub.
      dtype: float32, bfloat16 or float16.
      revision: branch, tag or commit of a hub id.
      chat_template: a jinja template in place of the tokenizer's own, or "plain".
      int8: keep the weights in 8 bits with a scale for each output channel.
      adapter: folder of a PEFT LoRA adapter, applied to every row.
      ignore: settings that are not known here and change nothing, see ``load_checkpoint``.

    Raises:
      FileNotFoundError, ValueError: as ``load_checkpoint`` and ``load_peft`` say; an argument of
        another type.
    """
    for name, value, kinds, expected in (
        ("path_or_id", path_or_id, str | os.PathLike, "a folder, a .gguf file or a hub id"),
        ("revision", revision, str | None, "a branch, tag or commit, or None"),
        ("chat_template", chat_template, str | None, f"a jinja template, {Chat.PLAIN!r} or None"),
        ("int8", int8, bool, "True or False"),
        ("adapter", adapter, str | os.PathLike | None, "the folder of an adapter, or None"),
    ):
        if not isinstance(value, kinds) or (isinstance(value, str) and not value.strip()):
            raise ValueError(f"{name} must be {expected}, got {value!r:.200}")
    try:
        kind = None if dtype is None else jnp.dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or kind == jnp.int8:
        more = "; int8=True keeps the weights in 8 bits" if kind is not None else ""
        raise ValueError(f"unknown dtype {dtype!r}; choose from {', '.join(DTYPES)}{more}")
    checkpoint = load_checkpoint(path_or_id, dtype=kind, revision=revision, ignore=ignore)
    lora = None if adapter is None else packed(load_peft(adapter, checkpoint.config))
    if adapter is not None:
        warn_of_another_base(adapter, f"{path_or_id} {checkpoint.path}")
    model = checkpoint.model
    if int8:  # the float tree is dropped
        checkpoint = dataclasses.replace(checkpoint, params=quantize(checkpoint.params))
    return LanguageModel(checkpoint, model, load_tokenizer(checkpoint.path),
                         chat_template=chat_template, lora=lora)

"""Between text and token ids: tokenizers and chat templates of transformers, without torch."""

import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from gradejax.generation.checks import text
from gradejax.generation.gguf_tokenizer import tokenizer_of_gguf
from gradejax.models.config import ids_of

_NO_LIMIT = int(1e30)  # transformers' own number for "no limit is known"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def load_tokenizer(path: str | pathlib.Path):
    """The tokenizer of a folder or .gguf file, or None when it holds none (a model loads without).

    Tokenizer files beside a .gguf file win over what can be rebuilt from its metadata.
    """
    # transformers says at every import that torch is missing; it is, on purpose.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    folder = pathlib.Path(path)
    if folder.is_file():
        beside = load_tokenizer(folder.parent)
        return tokenizer_of_gguf(folder) if beside is None else beside
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        return None
    # Slow to import; not needed for bare models.
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # tokenizer.json says everything, so it is used as written. AutoTokenizer would go by the
    # model_type beside it and, for qwen2 say, build that family's own normaliser and splitting
    # around the file's vocabulary: other ids than the model was trained with.
    reader = PreTrainedTokenizerFast if (folder / "tokenizer.json").exists() else AutoTokenizer
    try:
        # Lengths are checked against the model's context; its own warning, said once a process of
        # the first long text that is counted, helps nobody.
        return reader.from_pretrained(
            str(folder), local_files_only=True, model_max_length=_NO_LIMIT
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"the tokenizer in {folder} cannot be read: {error}") from error


def _refusals() -> tuple[type[Exception], ...]:
    """What a template's own raise_exception raises: jinja's base class, none of its kinds."""
    import jinja2

    return (jinja2.TemplateError,)


def _roles(messages: Any) -> list[str]:
    """The roles of messages.

    Raises:
      ValueError: no list of messages, or one whose role or content is no text.
    """
    several = isinstance(messages, Sequence) and messages
    if not several or not all(isinstance(m, Mapping) for m in messages):
        raise ValueError(f"expected a list of messages, got {messages!r:.200}")
    for i, message in enumerate(messages):
        for key in ("role", "content"):
            text(f"{key} of message {i}", message.get(key))
    return [m["role"] for m in messages]


class Chat:
    """Renders messages with a model's chat template and tokenises them.

    The template writes its own special tokens, so tokenising adds none: exactly as many BOS as the
    model was trained with (fault B05).

    Args:
      tokenizer: of ``load_tokenizer``.
      name: what to call the model in errors.
      template: None for the tokenizer's own; a jinja template; or "plain", which joins the
        messages' contents with blank lines, for base models.

    Raises:
      ValueError: no tokenizer, or no template (the message says what can be given instead), or one
        that is broken.
    """

    PLAIN = "plain"

    def __init__(self, tokenizer, *, name: str = "the model", template: str | None = None):
        if tokenizer is None:
            raise ValueError(
                f"{name} has no tokenizer; expected tokenizer.json or tokenizer.model beside "
                "config.json"
            )
        self._tokenizer, self._template, self._name = tokenizer, template, name
        if template is None and not tokenizer.chat_template:
            raise ValueError(
                f"the tokenizer of {name} has no chat template; give a jinja template, or "
                f"{self.PLAIN!r} to join the messages with blank lines"
            )
        self._probe()

    def _probe(self) -> None:
        """Render something now: a broken template is found before anything is asked."""
        try:
            self._render([{"role": "user", "content": "?"}])
        except Exception as error:  # templates are programs: they raise whatever they like
            if type(error) in _refusals():
                return  # its own rule about roles, which the real messages may well keep
            raise ValueError(
                f"the chat template of {self._name} is broken ({type(error).__name__}: {error}); "
                f"mend it, or give a jinja template or {self.PLAIN!r}"
            ) from error

    @property
    def tokenizer(self):
        return self._tokenizer

    @property
    def pad_id(self) -> int:
        """An id to fill padded places with; masks decide what counts, so any id does (T12)."""
        for value in (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id):
            if value is not None:
                return int(value)
        return 0

    @property
    def vocab(self) -> int:
        """Ids from here on have no text."""
        return len(self._tokenizer)

    @property
    def digest(self) -> str:
        """sha256 of what turns messages into ids: vocabulary, merges and template."""
        tokenizer = self._tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        rules = backend.to_str() if backend is not None else repr(sorted(
            tokenizer.get_vocab().items()))  # fmt: skip
        template = self._template or tokenizer.chat_template
        return hashlib.sha256(f"{rules}\0{template}".encode()).hexdigest()

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt as text, up to where the reply begins.

        Raises:
          ValueError: no messages of a role and a text, or ones that the template does not take
            (some refuse a system turn, others leave it out without a word).
        """
        roles = ", ".join(_roles(messages))
        try:
            rendered = self._render(messages)
        except Exception as error:  # templates are programs: they raise whatever they like
            raise ValueError(
                f"the chat template of {self._name} does not take messages of the roles {roles}: "
                f"{error}"
            ) from error
        for i, message in enumerate(messages):
            if message["content"].strip() not in rendered and self._left_out(messages, i, rendered):
                raise ValueError(
                    f"the chat template of {self._name} leaves out the message of the role "
                    f"{message['role']!r} (of the roles {roles}); put its text into a role that "
                    "the template knows, or give another template"
                )
        return rendered

    def _left_out(self, messages, i: int, rendered: str) -> bool:
        """Whether the prompt is the same without the content of a message.

        Of replies, templates leave out what was only thought.
        """
        if messages[i]["role"] == "assistant":
            return False
        without = [*messages[:i], {**messages[i], "content": ""}, *messages[i + 1 :]]
        try:
            return self._render(without) == rendered
        except Exception:  # it read the content
            return False

    def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
        if self._template == self.PLAIN:
            return "\n\n".join(m["content"] for m in messages) + "\n\n"
        return self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True,
            chat_template=self._template,
        )  # fmt: skip

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of the rendered prompt."""
        return self.encode_text(self.render(messages))

    def encode_text(self, rendered: str) -> list[int]:
        """Ids of text that is already rendered; a base model's BOS is added when plain."""
        return self._tokenizer(rendered, add_special_tokens=self._template == self.PLAIN)[
            "input_ids"
        ]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a reply without special tokens."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def stop_ids(self, *others: Any) -> tuple[int, ...]:
        """Union of the tokenizer's end id and the given entries (ints, lists or None; B03)."""
        ids = set(ids_of(self._tokenizer.eos_token_id))
        for other in others:
            ids |= set(ids_of(other))
        return tuple(sorted(ids))

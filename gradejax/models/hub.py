"""Finding a model's folder: a local path, or a Hugging Face hub id that is downloaded or cached.

Only what is read here is fetched: configs, tokenizer, and one kind of weights. Pickled weights
(``.bin``, ``.pt``) never are.
"""

import os
import pathlib
import re

_SMALL = ("*.json", "*.jinja", "tokenizer.model", "*.tiktoken", "vocab.txt", "merges.txt")
_SAFETENSORS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
_MSGPACK = ("flax_model.msgpack",)
# [owner/]name of letters, digits and -_. ; no part begins or ends with - or . or doubles them.
_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}[\w])?"
_ID = re.compile(rf"(?:{_PART}/)?{_PART}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")

_LOCAL = "or give a local folder with config.json, the weights and the tokenizer"


def _kind_of_weights(names: list[str], model: str) -> tuple[str, ...]:
    for patterns in (_SAFETENSORS, _MSGPACK):
        if patterns[0] in names or patterns[-1] in names:
            return patterns
    listed = ", ".join(sorted(n for n in names if "/" not in n)[:12])
    raise FileNotFoundError(
        f"{model!r} on the hub holds no weights that are read here; expected model.safetensors "
        f"(or its index) or flax_model.msgpack, found: {listed or 'nothing'}. GGUF files are given "
        "as a local path"
    )


def _download(model: str, revision: str | None) -> str:
    """Folder of a snapshot that holds what is needed."""
    import huggingface_hub as hub

    info = hub.HfApi().model_info(model, revision=revision)
    names = [sibling.rfilename for sibling in info.siblings or []]
    # By branch or tag, not by the commit just listed: only so does the cache remember which commit
    # the name meant, for when there is no network.
    return hub.snapshot_download(
        model, revision=revision,
        allow_patterns=[*_SMALL, "1_Pooling/config.json", *_kind_of_weights(names, model)],
    )  # fmt: skip


def _cached(model: str, revision: str | None) -> str | None:
    """Folder of a snapshot in the local cache, if it has all that ``_download`` would fetch."""
    import huggingface_hub as hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    for weights in (_SAFETENSORS, _MSGPACK):
        # The library itself refuses a snapshot that lacks files of these patterns.
        try:
            found = pathlib.Path(hub.snapshot_download(
                model, revision=revision, allow_patterns=[*_SMALL, *weights],
                local_files_only=True,
            ))  # fmt: skip
        except (LocalEntryNotFoundError, FileNotFoundError):
            continue
        if (found / "config.json").exists() and any(any(found.glob(p)) for p in weights):
            return str(found)
    return None


def _offline() -> bool:
    import huggingface_hub.constants as constants

    return bool(constants.HF_HUB_OFFLINE)


def resolve(path_or_id: str | pathlib.Path, revision: str | None = None) -> pathlib.Path:
    """The folder (or .gguf file) of a model.

    An existing path wins over a hub id of the same spelling. A hub id is asked for online; without
    a network, or with HF_HUB_OFFLINE=1, a complete snapshot in the local cache serves.

    Args:
      path_or_id: a folder, a .gguf file, or ``owner/name`` on the hub.
      revision: branch, tag or commit of a hub id; None is the main branch.

    Returns:
      a path that exists. A hub snapshot's folder is named by its commit, see ``commit_of``.

    Raises:
      FileNotFoundError: nothing of that name, on disk or on the hub (a gated or private one that
        may not be read included), or no weights that are read here, or no network and no cached
        copy. The message says what was looked for and how to go on.
      ValueError: neither a path that exists nor a well-formed hub id, nor text; or a revision of a
        path.
    """
    if not isinstance(path_or_id, str | os.PathLike):
        raise ValueError(
            f"expected a folder, a .gguf file or a hub id owner/name, got {path_or_id!r:.100}"
        )
    text = os.fspath(path_or_id)
    path = pathlib.Path(text).expanduser()
    if text and path.exists():
        if revision is not None:
            raise ValueError(
                f"{text!r} is a local path, which has no revisions, yet revision={revision!r} was "
                "asked for"
            )
        return path
    looks_local = isinstance(path_or_id, pathlib.Path) or text.startswith(("/", "./", "../", "~"))
    if looks_local or text.endswith(".gguf") or text.count("/") > 1:
        raise FileNotFoundError(f"model folder or file {text!r} does not exist")
    if not _ID.fullmatch(text) or "--" in text or ".." in text:
        raise ValueError(
            f"{text!r} is neither an existing folder nor a hub id; a hub id is owner/name, of "
            f"letters, digits, '-', '_' and '.'; {_LOCAL}"
        )
    return pathlib.Path(_from_hub(text, revision))


def _beside(path: pathlib.Path) -> str:
    """What stands where a mistyped path would have ended, for the message."""
    if path.parent == pathlib.Path() or not path.parent.is_dir():
        return ""
    names = sorted(p.name for p in path.parent.iterdir())
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (f" (the folder {str(path.parent)!r} is here and holds "
            f"{', '.join(names[:8]) or 'nothing'}{more})")  # fmt: skip


def _from_hub(model: str, revision: str | None) -> str:
    # An optional step of loading: a local folder needs none of it.
    from huggingface_hub import errors

    at = "" if revision is None else f" at revision {revision!r}"
    asked = f"{model!r}{at}: there is no folder of that name{_beside(pathlib.Path(model))}"
    if not _offline():
        try:
            return _download(model, revision)
        except errors.GatedRepoError as error:
            raise FileNotFoundError(
                f"{asked}, and the hub's model of that id is gated: accept its terms on its page "
                f"and log in (hf auth login, or HF_TOKEN), {_LOCAL}"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise FileNotFoundError(
                f"{asked}, and the hub's model of that id has no such revision; use a branch, a "
                f"tag or a full commit, {_LOCAL}"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise FileNotFoundError(
                f"{asked}, and the hub knows no model of that id that may be read; check the "
                f"spelling, log in if it is private (hf auth login, or HF_TOKEN), {_LOCAL}"
            ) from error
        except FileNotFoundError as error:
            if not isinstance(error, errors.LocalEntryNotFoundError):
                raise
            reason: Exception | str = error
        except (errors.HfHubHTTPError, OSError, RuntimeError) as error:
            reason = error  # no network, a proxy, a server that fails
        except Exception as error:  # the HTTP client's own errors share no base with the above
            if type(error).__module__.split(".")[0] not in ("httpx", "httpx2", "httpcore",
                                                            "httpcore2", "requests"):  # fmt: skip
                raise
            reason = error
    else:
        reason = "HF_HUB_OFFLINE is set"
    if found := _cached(model, revision):
        return found
    raise FileNotFoundError(
        f"{asked}, the hub cannot be reached ({reason}), and the local cache holds no complete "
        "copy (config.json, and model.safetensors or flax_model.msgpack); download it where there "
        f"is a network (hf download {model}), {_LOCAL}"
    )


def commit_of(path: str | pathlib.Path) -> str | None:
    """The commit of a hub snapshot's folder (``.../snapshots/<commit>``); None for another path."""
    folder = pathlib.Path(path)
    if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
        return folder.name
    return None

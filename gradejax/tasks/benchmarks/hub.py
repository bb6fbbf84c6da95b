"""Rows of a benchmark on the hub, through `datasets` (the extra "hub")."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from gradejax.tasks.benchmarks.spec import BenchmarkSpec


class NoHub(Exception):
    """The hub gave no rows; says why, and what may help."""


def rows_of(
    spec: BenchmarkSpec, subset: str, hub_split: str, limit: int | None = None
) -> list[Mapping[str, Any]]:
    """Rows in the hub's own columns, at the pinned revision; with `limit`, only the first ones.

    Raises:
      NoHub: `datasets` is not installed, there is no network, access is gated, ...
    """
    try:
        import datasets
    except ImportError as error:
        raise NoHub(
            "the package `datasets` is not installed (pip install 'gradejax[hub]')"
        ) from error
    options = {"split": hub_split, "revision": spec.revision}
    try:
        if limit is not None:
            rows = datasets.load_dataset(spec.hub_id, subset, streaming=True, **options)
            return list(islice(rows, limit))
        return list(datasets.load_dataset(spec.hub_id, subset, **options))
    except Exception as error:  # connection, gate, no such split: it has dozens of exceptions
        said = str(error).strip().split("\n")[0][:200]
        gated = " (access is granted on its page; then log in with `hf auth login`)"
        raise NoHub(
            f"{spec.hub_id} could not be loaded: {type(error).__name__}: {said}"
            + (gated if "gated" in str(error).lower() else "")
        ) from error


def reachable(seconds: float = 3.0) -> bool:
    """Does the hub answer? One request, so that a list of benchmarks need not wait for each."""
    import huggingface_hub
    from huggingface_hub.utils import get_session

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(huggingface_hub.constants.ENDPOINT, timeout=seconds)
    except Exception:  # of whichever client library it uses
        return False
    return True

"""What a run says of experts behind APIs: calls that failed, and money."""

import json
import pathlib
from collections.abc import Iterable

import numpy as np
from rich.console import Console

from gradejax.experts.registry import ExpertRegistry
from gradejax.systems.questions import QuestionSet
from gradejax.training.files import write_atomic

# How a server is asked and paid, not what is asked.
_MAY_CHANGE = (
    "key_variable", "concurrency", "connect_timeout", "read_timeout", "deadline", "attempts",
    "give_up_after", "backoff_base", "backoff_cap", "input_price", "output_price",
)  # fmt: skip


def may_change(agents: Iterable[str]) -> list[str]:
    """Keys of a config that may differ when a run goes on."""
    return [f"pool.agents.{name}.api.{key}" for name in agents for key in _MAY_CHANGE]


def report_missing(folder: pathlib.Path, sets: dict[str, QuestionSet], console: Console) -> None:
    """Say which calls failed, and write each with its reason to missing.jsonl."""
    rows = [
        {"split": split} | call._asdict() for split, known in sets.items() for call in known.failed
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomic(folder / "missing.jsonl", text)
    for seat, states in missing_counts(*sets.values()).items():
        console.print(
            f"missing: {seat}: {states}; left out of learning and figures, never wrong; the next "
            "run asks again where the call failed (missing.jsonl has each)", markup=False,
        )  # fmt: skip


def missing_counts(*sets: QuestionSet) -> dict[str, dict[str, int]]:
    """seat -> why -> how many calls are missing."""
    out: dict[str, dict[str, int]] = {}
    for call in (call for known in sets for call in known.failed):
        states = out.setdefault(call.seat, {})
        states[call.state] = states.get(call.state, 0) + 1
    return out


def notes(registry: ExpertRegistry, heldout: QuestionSet, money) -> dict:
    """What results.json says of experts behind APIs, {} without any.

    Args:
      money: per seed, [Q] what GRADE's calls cost.
    """
    remote = [s.name for s in registry.seats if s.remote]
    if not remote:
        return {}
    columns = dict(zip(registry.names, heldout.money.T, strict=True))
    return {
        "missing": missing_counts(heldout),
        "money_per_question": {"grade": float(np.mean(money))}
        | {f"single:{name}": float(columns[name].mean()) for name in remote}
        | {"everyone": float(heldout.money.sum(1).mean())},
        "unknown_active_params": list(registry.unknown_params),
    }

"""Share of feature extraction's time that is spent in the language models: one JSON line.

    python -m experiments.bench.feature_extraction --questions 2000

Asks every seat of the tiny pool into a fresh feature store, as the main job does, and embeds and
grades what they said. The clock of the language models runs from a batch of token ids to its
replies, and while the trunk reads questions and answers; rendering, tokenising, hashing, saving and
grading are outside. The first batches compile: a small sample is compilation mostly, so it is asked
once before as a warm-up where --warm is given.
"""

import argparse
import json
import tempfile
import time

from experiments import config as config_lib
from experiments.configs import grade_tiny
from experiments.tiny_corpus import questions
from gradejax.experts.features import FeatureStore
from gradejax.models import encoder
from gradejax.systems import asking
from gradejax.systems.description import registry_of
from gradejax.tasks.reasoning_gym import FAMILIES, ReasoningGymTask


class Clock:
    """Sums the seconds spent in functions."""

    def __init__(self):
        self.seconds = 0.0

    def timed(self, function):
        def run(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begin

        return run


def measure(frozen: asking.Frozen, n: int) -> dict:
    """Ask ``n`` questions into an empty store; seconds in all and in the language models."""
    clock = Clock()
    examples = questions("grade", n)
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore(folder)
        provider = frozen.provider
        below, engine = encoder.states_below, provider._generate
        provider._generate = clock.timed(engine)
        encoder.states_below = clock.timed(below)
        try:
            begin = time.perf_counter()
            known = asking.ask_questions(
                asking.Frozen(frozen.registry, frozen.models, provider, store), examples,
                ReasoningGymTask, FAMILIES, first_id=0,
            )  # fmt: skip
            seconds = time.perf_counter() - begin
        finally:
            provider._generate, encoder.states_below = engine, below
    return {
        "questions": len(known), "calls": store.counters.calls, "seconds": round(seconds, 2),
        "in_models": round(clock.seconds, 2), "share": round(clock.seconds / seconds, 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.feature_extraction", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=256, help="rows generated at once")
    parser.add_argument("--warm", action="store_true", help="compile before, by asking once")
    options = parser.parse_args()
    pool = config_lib.to_dict(grade_tiny.get_config())["pool"]
    frozen = asking.open_frozen(registry_of(pool), None, batch_size=options.batch)
    if options.warm:
        measure(frozen, options.questions)
    print(json.dumps({"bench": "feature_extraction", "warm": options.warm}
                     | measure(frozen, options.questions)))  # fmt: skip


if __name__ == "__main__":
    main()

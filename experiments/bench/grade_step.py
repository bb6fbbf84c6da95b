"""How fast GRADE trains on cached features: one JSON line.

    python -m experiments.bench.grade_step --config experiments/configs/grade_tiny.py

200 CoGRPO batches as the main job runs them (batch 48, G = 8, 2 inner epochs), logging and
checkpoints left out; the experts' replies come from the config's feature store.
"""

import argparse
import json
import time

import jax
import numpy as np
from rich.console import Console

from experiments import config as config_lib
from experiments.build import build
from experiments.run import ask_pool, open_pool
from experiments.trainer import Trainer
from gradejax.systems.grade import fit


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.grade_step", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--config", default="experiments/configs/grade_tiny.py")
    parser.add_argument("--steps", type=int, default=200)
    args, overrides = parser.parse_known_args()
    _, pairs, _ = config_lib.parse_args(overrides)
    run, frozen = open_pool(build(config_lib.to_dict(config_lib.load(args.config, pairs))))
    questions, _ = ask_pool(run, frozen, Console(stderr=True))
    trainer = Trainer(run, frozen, questions)
    state = trainer.fresh(0)
    reference = fit.reference_logits(trainer.shape, state, questions)
    schedule = fit.Schedule(len(questions), run.train.batch_size, 0)
    batch_at = fit.batches(questions, reference, schedule)
    begin = time.perf_counter()
    state, metrics = trainer.step(state, jax.device_put(batch_at(0)))
    jax.block_until_ready(metrics)
    compiled = time.perf_counter()
    marks = []
    for step in range(1, args.steps):
        state, metrics = trainer.step(state, jax.device_put(batch_at(step)))
        jax.block_until_ready(metrics)
        marks.append(time.perf_counter())
    seconds = np.diff([compiled, *marks])
    print(
        json.dumps(
            {
                "bench": "grade_step",
                "steps": args.steps,
                "batch": run.train.batch_size,
                "group": run.grade.group_size,
                "first_step_s": round(compiled - begin, 2),
                "all_steps_s": round(marks[-1] - begin, 2),
                "median_step_ms": round(1e3 * float(np.median(seconds)), 2),
                "steps_per_s": round(1 / float(np.median(seconds)), 1),
                "packed_rows": batch_at.packed_rows,
                "row_length": batch_at.length,
            }
        )
    )


if __name__ == "__main__":
    main()

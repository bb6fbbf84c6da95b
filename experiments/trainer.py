"""What the main job does with what the experts said: train each seed, decide, compare."""

import pathlib

import jax
import numpy as np

from experiments import api_report
from experiments.build import Run
from gradejax.evaluation.evaluate import compare
from gradejax.evaluation.metrics import detect_collapse
from gradejax.evaluation.outcome import SystemOutcome, outcome_from_decisions
from gradejax.systems import asking
from gradejax.systems.description import pool_entries
from gradejax.systems.grade import fit, infer
from gradejax.systems.grade.describe import describe
from gradejax.systems.grade.learner import TrainState
from gradejax.systems.grade.network import Shape
from gradejax.systems.grade.system import Anchors
from gradejax.systems.questions import QuestionSet
from gradejax.training import parallel
from gradejax.training.checkpoint import Checkpoints
from gradejax.training.files import storage_errors
from gradejax.training.logging import RunLog
from gradejax.training.loop import resume, train
from gradejax.training.progress import ProgressLine
from gradejax.training.restore import save_anchors


def anchors_of(run: Run, questions: QuestionSet) -> Anchors:
    """The first training questions, whatever the seed: each seat's features on them."""
    n = run.grade.anchors
    records = questions.records
    return Anchors(
        questions.examples[:n], tuple(f[:n] for f in records.features), records.available[:n]
    )


class Trainer:
    """Trains one seed after another with one compiled step."""

    def __init__(self, run: Run, frozen: asking.Frozen, questions: QuestionSet):
        self.run, self.frozen, self.questions = run, frozen, questions
        self.shape = Shape(run.grade, frozen.pool(), frozen.trunk.model.config)
        local = jax.local_devices()
        wanted = run.train.devices or len(local)
        self.devices = local[:wanted] if wanted > 1 else []
        step = fit.step_of(self.shape)
        self.step = (
            parallel.pmap_step(step, self.devices) if self.devices else parallel.jit_step(step)
        )

    def fresh(self, seed: int) -> TrainState:
        return fit.start(self.shape, self.questions, self.frozen.trunk.params, seed)

    def train(self, base: pathlib.Path, seed: int, progress: ProgressLine):
        """Train one seed in its folder to the end, or go on; returns (state on one device, status).
        """
        run = self.run
        with storage_errors(str(base)):
            base.mkdir(parents=True, exist_ok=True)
        save_anchors(base, anchors_of(run, self.questions))
        state = self.fresh(seed)
        # π_ref is the policy at step 0, a function of the seed: the same after any resume.
        reference = fit.reference_logits(self.shape, state, self.questions)
        schedule = fit.Schedule(len(self.questions), run.train.batch_size, seed)
        batch_at = fit.batches(self.questions, reference, schedule, devices=len(self.devices))
        meta = describe(
            self.shape, pool_entries=pool_entries(run.registry), task=run.task_entry,
            families=run.families, seed=seed,
        ) | {"experts": asking.expert_facts(self.frozen)}  # fmt: skip
        with (
            Checkpoints(base / "checkpoints", keep=run.checkpoint.keep) as checkpoints,
            RunLog(base / "metrics.jsonl", base / "events") as log,
        ):
            state = resume(state, checkpoints)
            options = {}
            if self.devices:
                state = parallel.replicate(state, self.devices)
                options = {"place": lambda x: x, "to_save": parallel.unreplicate}
            state, status = train(
                self.step, state, batch_at, steps=run.train.steps, checkpoints=checkpoints,
                log=log, save_every=run.checkpoint.save_every, meta=meta,
                on_progress=lambda step, means: self._progress(progress, seed, step, means),
                **options,
            )  # fmt: skip
        return (parallel.unreplicate(state) if self.devices else state), status

    def _progress(self, line: ProgressLine, seed: int, step: int, means) -> None:
        line.update(step, means)
        if step % 50 == 0:
            for sentence in detect_collapse(
                agent_use={a: means[f"usage/{a}"] or 0.0 for a in self.shape.pool.agents},
                depth_use=[means[f"depth/{d}"] or 0.0 for d in range(3)],
                entropies={
                    g: (means[f"entropy/{g}"] or 0.0, top)
                    for g, top in (("depth", np.log(3)), ("assignment", np.log(2)),
                                   ("read", np.log(2)), ("prune", np.log(2)))
                },
            ):  # fmt: skip
                line.warn(f"seed {seed}: {sentence}", key=f"{seed}:{sentence[:24]}")


def decide(shape: Shape, state: TrainState, questions: QuestionSet, size: int, decision: str,
           seed: int) -> tuple[SystemOutcome, np.ndarray]:  # fmt: skip
    """(GRADE's outcome on a set of questions, [Q] money of its calls); the memory is frozen."""
    parts = []
    for at in range(0, len(questions), size):
        rows = np.arange(at, min(at + size, len(questions)))
        batch = fit.whole(questions, rows, size)
        got = infer.infer(shape, state.params, batch, state.memory, state.calibration,
                          decision=decision, key=jax.random.key(seed))  # fmt: skip
        parts.append([np.asarray(x)[: len(rows)] for x in (got.answer, got.asked, got.depth)])
    answer, asked, depth = (np.concatenate(x) for x in zip(*parts, strict=True))
    outcome = outcome_from_decisions(
        questions.records, shape.pool, answer, asked, depth, orchestrator_always=True
    )
    return outcome, (questions.money * asked).sum(1)


def groups_of(run: Run) -> dict[str, tuple[str, ...]]:
    """Agents that share a model, by the model's name: self-consistency groups."""
    by_model: dict[str, list[str]] = {}
    for spec in run.registry.agents:
        by_model.setdefault(pathlib.Path(spec.model).name, []).append(spec.name)
    return {name: tuple(agents) for name, agents in by_model.items() if len(agents) > 1}


def evaluate(run: Run, shape: Shape, states, train_set: QuestionSet, heldout: QuestionSet) -> dict:
    """results.json: GRADE per seed and every baseline on the same held-out questions."""
    size = run.evaluation.batch_size
    by_decision = {
        decision: [
            decide(shape, state, heldout, size, decision, seed)
            for seed, state in zip(run.seeds, states, strict=True)
        ]
        for decision in infer.DECISIONS
    }
    accuracy = {
        name: float(np.mean([o.correct[o.covered].mean() for o, _ in outcomes]))
        for name, outcomes in by_decision.items()
    }
    outcomes, money = zip(*by_decision["threshold"], strict=True)
    return compare(
        {"grade": outcomes}, heldout.records, shape.pool, run.families,
        replicates=run.evaluation.replicates, train=train_set.records,
        train_query=train_set.queries, test_query=heldout.queries, groups=groups_of(run),
        notes={
            "grade_accuracy_by_decision": accuracy, "steps": int(states[0].step),
            "options": bool(np.any(heldout.records.choices)),
        }
        | api_report.notes(run.registry, heldout, money),
    )  # fmt: skip

"""The main job: ask a pool, train GRADE's gates, evaluate beside baselines.

    python -m experiments.run --config experiments/configs/grade_tiny.py --workdir runs/grade_tiny
    python -m experiments.run --config ... --workdir ... --config.train.steps=400
    python -m experiments.run --config ... --workdir ... --config.mode=evaluate

The workdir holds config.json, metrics.jsonl, events/, checkpoints/, anchors.*, missing.jsonl (calls
of experts that failed, and why), results.json and accuracy_vs_params.png; further seeds have
folders seed_<s>/ of the same kind. The same command goes on with a run that was stopped.
"""

import pathlib
import sys
import time

import jax
import numpy as np
from rich.console import Console

from experiments import api_report
from experiments import config as config_lib
from experiments.build import Run, build
from gradejax.evaluation.evaluate import compare
from gradejax.evaluation.figure import save_figure
from gradejax.evaluation.metrics import detect_collapse
from gradejax.evaluation.outcome import SystemOutcome, outcome_from_decisions
from gradejax.evaluation.report import print_results
from gradejax.experts.ask import TooManyMissing
from gradejax.experts.features import FeatureStore
from gradejax.experts.progress import duration
from gradejax.experts.replies import ExpertCallError, PromptTooLong
from gradejax.experts.segments import StoreWriteError
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
from gradejax.training.files import StorageError
from gradejax.training.logging import RunLog
from gradejax.training.loop import NonFiniteLoss, go_on_command, resume, train
from gradejax.training.progress import ProgressLine
from gradejax.training.restore import save_anchors
from gradejax.training.workdir import Workdir, WorkdirError

# What a run may change when it goes on: more steps, and how it is saved, watched and evaluated.
MAY_CHANGE = ("mode", "train.steps", "checkpoint", "evaluation", "store", "budget")
SHOWN = {
    "loss": "loss", "reward": "reward", "accuracy": "acc", "agents": "agents", "depth": "depth",
    "entropy/depth": "H(depth)", "entropy/assignment": "H(assign)", "entropy/read": "H(read)",
    "entropy/prune": "H(prune)",
}  # fmt: skip
USER_ERRORS = (
    config_lib.ConfigError, WorkdirError, StorageError, NonFiniteLoss, PromptTooLong,
    TooManyMissing, ExpertCallError, StoreWriteError, ValueError, FileNotFoundError,
)  # fmt: skip


def ask_pool(run: Run, console: Console) -> tuple[asking.Frozen, QuestionSet, QuestionSet]:
    """Load the models and ask every seat every question, or read what the store has."""
    store = FeatureStore(run.store.path)
    frozen = asking.open_frozen(
        run.registry, store, batch_size=run.store.batch_size, limits=run.budget.limits
    )
    last = [0.0]

    def said(progress) -> None:
        now = time.monotonic()
        if now - last[0] > 5 or progress.done == progress.total:
            last[0] = now
            left = progress.seconds_left
            about = f", about {duration(left)} left" if left else ""
            console.print(f"  asked {progress.done}/{progress.total} ({progress.model}){about}",
                          markup=False)  # fmt: skip

    out = []
    first = 0
    for questions in (run.train_questions, run.heldout_questions):
        out.append(
            asking.ask_questions(
                frozen, questions, run.task, run.families, first_id=first, progress=said,
                on_error=run.store.on_error,
            )
        )  # fmt: skip
        first += len(questions)
    counters = store.counters
    console.print(
        f"feature store {run.store.path}: {counters.hits} read, {counters.calls} language-model "
        "calls made", markup=False,
    )  # fmt: skip
    spent = frozen.api.budget
    if spent.calls:
        console.print(
            f"APIs: {spent.calls} calls, {spent.spent.tokens:,.0f} tokens, "
            f"{spent.spent.money:.4g} by the config's prices", markup=False,
        )  # fmt: skip
    return frozen, out[0], out[1]


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
        if wanted > len(local):
            raise config_lib.ConfigError(
                f"config.train.devices is {wanted}; this process has {len(local)}: {local}"
            )
        self.devices = local[:wanted] if wanted > 1 else []
        step = fit.step_of(self.shape)
        self.step = (
            parallel.pmap_step(step, self.devices) if self.devices else parallel.jit_step(step)
        )

    def fresh(self, seed: int) -> TrainState:
        return fit.start(self.shape, self.questions, self.frozen.trunk.params, seed)

    def train(self, folder: Workdir | pathlib.Path, seed: int, progress: ProgressLine):
        """Train one seed to the end, or go on; returns (state on one device, status)."""
        run = self.run
        base = folder.path if isinstance(folder, Workdir) else folder
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
        )  # fmt: skip
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
        notes={"grade_accuracy_by_decision": accuracy, "steps": int(states[0].step)}
        | api_report.notes(run.registry, heldout, money),
    )  # fmt: skip


def main(argv=None) -> int:
    """Run; returns the exit status: 0 done, 1 a user error, 3 interrupted."""
    console = Console(soft_wrap=True)
    try:
        return _main(sys.argv[1:] if argv is None else argv, console)
    except USER_ERRORS as error:
        console.print(f"error: {error}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print(
            "interrupted; what the experts have said so far is kept. To go on: "
            + go_on_command(), markup=False,
        )  # fmt: skip
        return 3


def _main(argv, console: Console) -> int:
    path, overrides, rest = config_lib.parse_args(argv)
    workdir = None
    while rest:
        name, _, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            console.print(__doc__, markup=False)
            return 0
        if name != "--workdir" or not (value or rest):
            raise config_lib.ConfigError(
                f"unknown argument {name!r}; expected --config=FILE, --workdir=FOLDER and "
                "--config.KEY=VALUE"
            )
        workdir = value or rest.pop(0)
    if path is None or workdir is None:
        raise config_lib.ConfigError("expected --config=FILE and --workdir=FOLDER")
    config = config_lib.to_dict(config_lib.load(path, overrides))
    begin = time.monotonic()
    with Workdir(workdir) as folder:
        run = build(config)
        resumed = folder.claim(
            config, may_change=[*MAY_CHANGE, *api_report.may_change(config["pool"]["agents"])]
        )
        console.print(f"{'going on with' if resumed else 'starting'} {folder.path}", markup=False)
        frozen, train_set, heldout = ask_pool(run, console)
        api_report.report_missing(folder.path, {"train": train_set, "heldout": heldout}, console)
        asked = time.monotonic()
        trainer = Trainer(run, frozen, train_set)
        states = []
        for i, seed in enumerate(run.seeds):
            base = folder if i == 0 else folder.path / f"seed_{seed}"
            if run.mode == "evaluate":
                states.append(_restored(trainer, base, seed))
                continue
            console.print(f"training seed {seed}", markup=False)
            with ProgressLine(SHOWN, run.train.steps) as progress:
                state, status = trainer.train(base, seed, progress)
            if status.name == "interrupted":
                console.print(status.message, markup=False)
                return 3
            states.append(state)
        trained = time.monotonic()
        results = evaluate(run, trainer.shape, states, train_set, heldout)
        folder.write_results(results)
        figure = folder.path / "accuracy_vs_params.png"
        save_figure(results, figure)
        print_results(results, console)
        console.print(
            f"asking {asked - begin:.1f} s, training {trained - asked:.1f} s, evaluation "
            f"{time.monotonic() - trained:.1f} s; results in {folder.results} and {figure}",
            markup=False,
        )  # fmt: skip
    return 0


def _restored(trainer: Trainer, base, seed: int) -> TrainState:
    folder = base.path if isinstance(base, Workdir) else base
    if not (folder / "checkpoints").is_dir():
        raise FileNotFoundError(
            f"config.mode=evaluate needs a trained run; {folder} holds no checkpoints"
        )
    with Checkpoints(folder / "checkpoints", read_only=True) as checkpoints:
        return checkpoints.restore(trainer.fresh(seed))


if __name__ == "__main__":
    sys.exit(main())

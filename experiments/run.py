"""The main job: ask a pool, train GRADE's gates, evaluate beside baselines.

    python -m experiments.run --config experiments/configs/grade_tiny.py --workdir runs/grade_tiny
    python -m experiments.run --config ... --workdir ... --config.train.steps=400
    python -m experiments.run --config ... --workdir ... --config.mode=evaluate

The workdir holds config.json, inputs.json (digests of questions and experts), metrics.jsonl,
events/, checkpoints/, anchors.*, missing.jsonl (calls of experts that failed, and why),
results.json and accuracy_vs_params.png; each further seed has a folder seed_<s>/ with its own
metrics.jsonl, events/, checkpoints/ and anchors.*. The same command goes on with a run that was
stopped.
"""

import contextlib
import math
import pathlib
import sys
import time

import jax
from rich.console import Console

from experiments import api_report
from experiments import config as config_lib
from experiments.build import Run, build, with_questions
from experiments.trainer import Trainer, evaluate
from gradejax.evaluation.figure import save_figure
from gradejax.evaluation.report import print_results
from gradejax.experts.ask import TooManyMissing
from gradejax.experts.features import FeatureStore
from gradejax.experts.progress import Progress, duration
from gradejax.experts.replies import ExpertCallError, PromptTooLong
from gradejax.systems import asking
from gradejax.systems.questions import QuestionSet
from gradejax.training.checkpoint import Checkpoints
from gradejax.training.digest import question_digests
from gradejax.training.files import StorageError, storage_errors
from gradejax.training.loop import NonFiniteLoss, go_on_command, sigterm_interrupts
from gradejax.training.progress import ProgressLine
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
    TooManyMissing, ExpertCallError, ValueError, OSError,
)  # fmt: skip
# What an interrupted run keeps, by what it was doing.
KEPT = {
    "starting": "nothing was asked yet",
    "asking": "what the experts have said so far is kept",
    "training": "the newest checkpoint is kept",
    "evaluation": "what the experts said and the trained states are kept",
}


def open_pool(run: Run) -> tuple[Run, asking.Frozen]:
    """Load the models; (the run with the questions it asks, those that fit the pool; the pool)."""
    frozen = asking.open_frozen(
        run.registry, FeatureStore(run.store.path), batch_size=run.store.batch_size,
        limits=run.budget.limits,
    )  # fmt: skip
    run = with_questions(run, lambda example: asking.fits(frozen, example, run.task))
    if run.store.on_long == "error":
        # a held-out prompt that is too long must not be found after hours of asking
        asking.check_lengths(frozen, [*run.train_questions, *run.heldout_questions], run.task)
    return run, frozen


class Said:
    """Says how far the asking is: where it begins, at most every five seconds, and at the end.

    Args:
      name: which questions.
      console: where.
    """

    def __init__(self, name: str, console: Console):
        self._name, self._console = name, console
        self._last = -math.inf
        self.newest = Progress(0, 0, 0, "")

    def __call__(self, progress: Progress) -> None:
        self.newest, now = progress, time.monotonic()
        if now - self._last <= 5 and progress.done != progress.total:
            return
        self._last = now
        where = f" ({progress.model})" if progress.model else ""
        left = progress.seconds_left
        about = f", about {duration(left)} left" if left else ""
        self._console.print(
            f"  {self._name}: {progress.done} of {progress.total} calls{where}{about}",
            markup=False,
        )  # fmt: skip


def ask_pool(
    run: Run, frozen: asking.Frozen, console: Console
) -> tuple[QuestionSet, QuestionSet]:
    """Ask every seat every question, or read what the store has."""
    for note in run.notes:
        console.print(note, markup=False)
    out = []
    first = calls = stored = 0
    for name, questions in (("training", run.train_questions), ("held-out", run.heldout_questions)):
        console.print(f"{name}: {len(questions)} questions to {len(run.registry.seats)} seats",
                      markup=False)  # fmt: skip
        said = Said(name, console)
        out.append(
            asking.ask_questions(
                frozen, questions, run.task, run.families, first_id=first, progress=said,
                on_error=run.store.on_error, on_long=run.store.on_long,
            )
        )  # fmt: skip
        first += len(questions)
        calls, stored = calls + said.newest.total, stored + said.newest.stored
    made = frozen.store.counters.calls
    unasked = calls - stored - made
    console.print(
        f"{calls} different calls: {stored} read from the feature store {run.store.path}, {made} "
        f"language-model calls made" + (f", {unasked} could not be asked" if unasked else ""),
        markup=False,
    )  # fmt: skip
    spent = frozen.api.budget
    if spent.calls:
        console.print(
            f"APIs: {spent.calls} calls, {spent.spent.tokens:,.0f} tokens, "
            f"{spent.spent.money:.4g} by the config's prices", markup=False,
        )  # fmt: skip
    return out[0], out[1]


def main(argv=None) -> int:
    """Run; returns the exit status: 0 done, 1 a user error, 3 interrupted."""
    console = Console(soft_wrap=True)
    stage = ["starting"]
    try:
        with sigterm_interrupts():
            return _main(sys.argv[1:] if argv is None else argv, console, stage)
    except USER_ERRORS as error:
        _say(console, f"error: {error}", style="bold red")
        return 1
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        said = (str(error).splitlines() or ["MemoryError"])[0]
        _say(
            console,
            f"error: not enough memory in {stage[-1]} ({said}); {KEPT[stage[-1]]}. What takes it: "
            "train.batch_size, grade.group_size, grade.memory_slots, store.batch_size, "
            "evaluation.batch_size, evaluation.replicates", style="bold red",
        )  # fmt: skip
        return 1
    except KeyboardInterrupt as error:
        _say(
            console,
            f"{error if error.args else 'SIGINT'}: interrupted in {stage[-1]}; {KEPT[stage[-1]]}. "
            f"To go on, run the same command again: {go_on_command()}",
        )
        return 3


def _say(console: Console, text: str, **style) -> None:
    with contextlib.suppress(OSError):  # the log may lie on the disk that is full
        console.print(text, markup=False, **style)


def _main(argv, console: Console, stage: list[str]) -> int:
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
        # Whatever can be refused is, before the folder is claimed and before anything is asked.
        may_change = [*MAY_CHANGE, *api_report.may_change(config["pool"]["agents"])]
        folder.check(config, may_change=may_change)
        run = build(config)
        if run.mode == "evaluate":
            _need_checkpoints(run, folder)
        run, frozen = open_pool(run)
        resumed = folder.claim(config, _inputs(run, frozen), may_change=may_change)
        console.print(f"{'going on with' if resumed else 'starting'} {folder.path}", markup=False)
        stage.append("asking")
        train_set, heldout = ask_pool(run, frozen, console)
        api_report.report_missing(folder.path, {"train": train_set, "heldout": heldout}, console)
        asked = time.monotonic()
        evaluating = run.mode == "evaluate"
        stage.append("evaluation" if evaluating else "training")
        trainer = Trainer(run, frozen, train_set)
        states = []
        for seed, base in zip(run.seeds, _folders(run, folder), strict=True):
            if evaluating:
                with Checkpoints(base / "checkpoints", read_only=True) as checkpoints:
                    states.append(checkpoints.restore(trainer.fresh(seed)))
                continue
            console.print(f"training seed {seed}", markup=False)
            with ProgressLine(SHOWN, run.train.steps) as progress:
                state, status = trainer.train(base, seed, progress)
            if status.name == "interrupted":
                console.print(status.message, markup=False)
                return 3
            states.append(state)
        trained = time.monotonic()
        stage.append("evaluation")
        results = evaluate(run, trainer.shape, states, train_set, heldout)
        folder.write_results(results)
        figure = folder.path / "accuracy_vs_params.png"
        with storage_errors(str(figure), "results.json is written"):
            save_figure(results, figure)
        print_results(results, console)
        console.print(
            f"asking {asked - begin:.1f} s, {'restoring' if evaluating else 'training'} "
            f"{trained - asked:.1f} s, evaluation {time.monotonic() - trained:.1f} s; "
            f"results in {folder.results} and {figure}",
            markup=False,
        )  # fmt: skip
    return 0


def _folders(run: Run, folder: Workdir) -> list[pathlib.Path]:
    """Each seed's folder: the first seed's is the workdir itself."""
    return [folder.path if i == 0 else folder.path / f"seed_{s}" for i, s in enumerate(run.seeds)]


def _inputs(run: Run, frozen: asking.Frozen) -> dict:
    """Digests of what this run is trained and evaluated on; see ``Workdir.claim``."""
    return {
        "questions": {
            "training": question_digests(run.train_questions),
            "held-out": question_digests(run.heldout_questions),
        },
        "experts": asking.expert_facts(frozen),
    }


def _need_checkpoints(run: Run, folder: Workdir) -> None:
    for path in _folders(run, folder):
        if not any((path / "checkpoints").glob("*/_CHECKPOINT_METADATA")):
            raise FileNotFoundError(
                f"config.mode=evaluate needs a trained run; {path} holds no checkpoints"
            )


if __name__ == "__main__":
    sys.exit(main())

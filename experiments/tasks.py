"""Lists the benchmarks, and shows one rendered prompt and gold of each.

    python -m experiments.tasks                       # folder GRADEJAX_DATA, else the hub
    python -m experiments.tasks gsm8k mmlu --folder FOLDER --shots 2 --shuffle-seed 1
    python -m experiments.tasks reasoning_gym:countdown --full

What is not at hand is said in one line each; no benchmark ships with gradejax. Items of GPQA are
never shown: its authors ask for that.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator

from gradejax.tasks import benchmarks
from gradejax.tasks.base import Example, Task
from gradejax.tasks.chance import chance_level
from gradejax.tasks.exemplars import EXEMPLARS
from gradejax.tasks.prompts import chain_of_thought_messages, expert_messages, question_text
from gradejax.tasks.shuffle import ORDER, shuffle_choices

GYM = "reasoning_gym"
# characters of a prompt or a gold that are shown
WIDTH = 1200
# rows read to show one: the first ones may be left out by the benchmark itself
_LOOKED_AT = 50


def main(argv=None) -> int:
    """Print the list; the exit status is 0, or 2 for a wrong name or setting."""
    args = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    names = args.names or [*benchmarks.BENCHMARKS, GYM]
    unknown = [n for n in names if n.split(":")[0] not in (*benchmarks.BENCHMARKS, GYM)]
    if unknown:
        print(
            f"error: no task {unknown[0]!r}; choose from {', '.join(benchmarks.BENCHMARKS)}, {GYM},"
            f" {GYM}:GENERATOR, and a benchmark's NAME:SUBSET", file=sys.stderr,
        )  # fmt: skip
        return 2
    hub = _hub_is_there(args, names)
    at_hand = 0
    for name in names:
        print(f"== {name}")
        try:
            for line in _lines(name, args, hub):
                print(line)
            at_hand += 1
        except benchmarks.NotAtHand as error:
            print(f"  not at hand: {error}")
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print()
    print(f"{at_hand} of {len(names)} tasks are at hand")
    return 0


def _hub_is_there(args, names) -> bool:
    if args.offline or all(name.split(":")[0] == GYM for name in names):
        return False
    from gradejax.tasks.benchmarks import hub

    if hub.reachable():
        return True
    print("the hub does not answer: only folders are looked into\n")
    return False


def _lines(name: str, args, hub: bool) -> Iterator[str]:
    """What is said of one task. Raises NotAtHand after its first lines."""
    base, _, subset = name.partition(":")
    if base == GYM:
        yield from _generated(subset, args)
        return
    spec = benchmarks.spec_named(base)
    subset = spec.check_subset(subset)
    yield f"  {spec.hub_id} at {spec.revision}"
    yield f"  answers: {spec.kind}; splits: {_splits(spec, subset)}"
    if len(spec.subsets) > 1:
        yield f"  subsets: {', '.join(spec.subsets[:6])}" + (
            f" ... ({len(spec.subsets)} in all)" if len(spec.subsets) > 6 else ""
        )
    split = args.split or ("train" if "train" in spec.splits else "test")
    where = {"subset": subset, "folder": args.folder, "hub": hub}
    loaded = benchmarks.load(base, split, limit=_LOOKED_AT, **where)
    if args.shots:
        if spec.exemplars is None:
            yield "  no worked examples: it has a test set only"
        else:
            shown = benchmarks.few_shot_from(loaded, args.shots, **where)
            loaded = loaded._replace(examples=shown)
    if args.count:
        whole = benchmarks.load(base, split, **where)
        level = chance_level(whole.examples)
        guess = f"; guessing is right on {level:.1%}" if level else ""
        yield f"  {len(whole.examples)} examples in {split}{guess}"
        yield from (f"  {note}" for note in whole.notes)
    yield f"  from {loaded.origin}"
    if not loaded.examples:
        raise benchmarks.NotAtHand(f"its first {_LOOKED_AT} rows are all left out")
    example = loaded.examples[0]
    if not spec.may_be_shown:
        yield "  (its items are not to be shown; the text below stands for one)"
        example = dataclasses.replace(
            example, id="(withheld)", question="(question)", answer="A",
            choices=tuple(f"(option {i})" for i in range(len(example.choices))), meta={},
        )  # fmt: skip
    yield from _shown(example, loaded.task, args)


def _generated(subset: str, args) -> Iterator[str]:
    if not subset:
        from gradejax.tasks.reasoning_gym import SOURCES, ReasoningGymTask, make_examples

        yield f"  {len(SOURCES)} fixed sources in three families; any other: {GYM}:GENERATOR"
        yield from _shown(make_examples(SOURCES[0], 0, 1)[0], ReasoningGymTask, args)
        return
    from gradejax.tasks.benchmarks import reasoning_gym as any_lib

    example = any_lib.draw(any_lib.generated_of(subset), 0, 1)[0]
    yield from _shown(example, any_lib.AnyReasoningGymTask, args)


def _shown(example: Example, task: Task, args) -> Iterator[str]:
    """The prompt an expert gets, and the gold."""
    if args.shuffle_seed >= 0:
        example = shuffle_choices(example, args.shuffle_seed)
    text, slot = question_text(example), task.format_slot(example)
    exemplars = example.meta.get(EXEMPLARS)
    messages = (
        chain_of_thought_messages(text, slot, exemplars) if exemplars
        else expert_messages(text, slot)
    )  # fmt: skip
    yield f"  id: {example.id}"
    for message in messages:
        yield f"  {message['role']}: {_cut(message['content'], args.full)}"
    if ORDER in example.meta:
        yield f"  order of the options: {list(example.meta[ORDER])}"
    gold = example.answer or "(none: the generator's scorer decides)"
    yield f"  gold: {_cut(gold, args.full)}"


def _splits(spec: benchmarks.BenchmarkSpec, subset: str) -> str:
    counts = []
    for split in spec.splits:
        n = spec.counts.get((subset, split))
        if n is None:
            n = sum(m for (_, s), m in spec.counts.items() if s == split)
        counts.append(f"{split} {n}")
    return ", ".join(counts)


def _cut(text: str, full: bool) -> str:
    if not full and len(text) > WIDTH:
        half, gone = WIDTH // 2, len(text) - WIDTH
        text = f"{text[:half]}\n... ({gone} characters) ...\n{text[-half:]}"
    return text.rstrip("\n").replace("\n", "\n    ")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.tasks", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", help="NAME or NAME:SUBSET; all when none is given")
    parser.add_argument("--folder", help="folder of JSONL files (default: GRADEJAX_DATA)")
    parser.add_argument("--offline", action="store_true", help="do not try the hub")
    parser.add_argument("--split", help="default: train where there is one, else test")
    parser.add_argument("--count", action="store_true", help="read all rows and count them")
    parser.add_argument("--shots", type=int, default=0, help="worked examples in the prompt")
    parser.add_argument("--shuffle-seed", type=int, default=-1, help="shuffle the options")
    parser.add_argument("--full", action="store_true", help="do not shorten prompts")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""How fast replies are graded: one JSON line per kind of answer.

    python -m experiments.bench.grade_speed
    python -m experiments.bench.grade_speed --replies 10000 --words 80

Replies are made up, as models write them: some sentences of working, then the answer in one of
several dresses (a tenth state none). Numbers and choices are graded in this process; formulas are
compared in worker processes, and every pair is new, so that no cache helps.
"""

import argparse
import json
import random
import resource
import time

from gradejax.tasks.answers import make_task
from gradejax.tasks.base import Example
from gradejax.tasks.prompts import choice_format, open_format

DRESSES = {
    "number": ("\nANSWER: {}", "\n#### {}", "So \\boxed{{{}}}.", "The answer is {}.", "It is {}",
               "**Answer:** ${}$", "\n\nThat makes {} in all.", "A: {}", "= {} dollars.", ""),
    "choice": ("\nANSWER: {}", "The answer is ({}).", "So \\boxed{{\\text{{{}}}}}.", "\n\n{}",
               "**Answer: {}**", "The correct answer is {}. This is because", "({}) is correct.",
               "Answer: option {}", "I choose {}.", ""),
    "math": ("\nANSWER: ${}$", "So \\boxed{{{}}}.", "The answer is ${}$."),
}  # fmt: skip


def replies(kind: str, n: int, words: int, rng: random.Random) -> list[tuple[str, Example]]:
    """`n` replies of about `words` words with the questions they answer."""
    vocabulary = "we add the 12 of them to 3.5 and so it was 1,200 apples which a man has left"
    vocabulary = vocabulary.split(" ")
    options = tuple(f"option number {i}" for i in range(10))
    made = []
    for i in range(n):
        working = " ".join(rng.choices(vocabulary, k=words)).capitalize() + ". "
        if kind == "choice":
            gold, given, choices = "C", rng.choice("ABCDEFGHIJ"), options
        elif kind == "math":
            a, b = rng.randint(2, 10**6), i + 2
            gold, given, choices = f"x^2+{a + b}x+{a * b}", f"(x+{a})(x+{b})", None
        else:
            gold, given, choices = "1234", str(rng.choice([1234, rng.randint(0, 10**4)])), None
        made.append(
            (working + rng.choice(DRESSES[kind]).format(given), Example(str(i), "", choices, gold))
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.grade_speed", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--replies", type=int, default=10_000)
    parser.add_argument("--words", type=int, default=120)
    parser.add_argument("--formulas", type=int, default=200)
    args = parser.parse_args()
    for kind, n in (("number", args.replies), ("choice", args.replies), ("math", args.formulas)):
        task = make_task(kind, kind, choice_format if kind == "choice" else open_format)
        rows = replies(kind, n, args.words, random.Random(0))
        task.judge(rows[0][0], "stop", rows[0][1])  # patterns compiled, the first worker started
        start, cpu = time.perf_counter(), _cpu_s()
        judged = [task.judge(text, "stop", example) for text, example in rows]
        seconds, cpu = time.perf_counter() - start, _cpu_s() - cpu
        line = {"bench": "grade_speed", "kind": kind, "replies": n}
        line["mean_chars"] = round(sum(len(text) for text, _ in rows) / n)
        line["seconds"], line["cpu_s"] = round(seconds, 3), round(cpu, 3)
        line["ms_each"] = round(1e3 * seconds / n, 3)
        line["no_answer"] = sum(j.answer is None for j in judged)
        print(json.dumps(line), flush=True)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

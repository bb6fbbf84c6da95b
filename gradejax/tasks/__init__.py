"""Benchmark families: examples, prompts, answer reading and grading. Host code over strings."""

from gradejax.tasks.answers import KINDS, make_task
from gradejax.tasks.base import Example, Judged, Outcome, Task, after_thinking, outcome_shares
from gradejax.tasks.data import Benchmark, gold_index, infer_kind, load_jsonl, load_task
from gradejax.tasks.prompts import FORMATS, expert_messages, orchestrator_messages, question_text
from gradejax.tasks.splits import (
    check_disjoint,
    check_disjoint_seeds,
    few_shot,
    item_key,
    split_by_hash,
    within_length,
)

__all__ = [
    "FORMATS",
    "KINDS",
    "Benchmark",
    "Example",
    "Judged",
    "Outcome",
    "Task",
    "after_thinking",
    "check_disjoint",
    "check_disjoint_seeds",
    "expert_messages",
    "few_shot",
    "gold_index",
    "infer_kind",
    "item_key",
    "load_jsonl",
    "load_task",
    "make_task",
    "orchestrator_messages",
    "outcome_shares",
    "question_text",
    "split_by_hash",
    "within_length",
]

"""The prompts of GRADE (arXiv 2607.10836): expert, orchestrator, and each family's `{format}` slot.

The texts are the paper's. Departures: the letters of multiple choice are those of the item's own
options (MMLU-Pro items have 3 to 10), and the generic slots for other benchmarks are ours.
"""

from gradejax.tasks.base import Example
from gradejax.tasks.choices import LETTERS, option_letters

EXPERT_SYSTEM = (
    "You are a domain expert. Reason step by step, then end with your final answer on a new line "
    "as ANSWER: <value>."
)

CHAIN_OF_THOUGHT = "Solve the problem with step-by-step reasoning, following the examples."

Messages = list[dict[str, str]]


def expert_messages(question: str, format_slot: str) -> Messages:
    """Chat messages for an expert: a system turn and a user turn."""
    return [
        {"role": "system", "content": EXPERT_SYSTEM},
        {"role": "user", "content": _question_and_format(question, format_slot)},
    ]


def chain_of_thought_messages(question: str, format_slot: str, exemplars: str) -> Messages:
    """The chain-of-thought prompt: one user turn with the worked examples before the question.

    Args:
      question, format_slot: as in the other prompts.
      exemplars: rendered, each with its question, solution and ANSWER: line.
    """
    content = f"{CHAIN_OF_THOUGHT}\n\n{exemplars}\n\n{_question_and_format(question, format_slot)}"
    return [{"role": "user", "content": content}]


def orchestrator_messages(question: str, format_slot: str) -> Messages:
    """Chat messages for M0, which answers directly: one user turn."""
    content = _question_and_format(question, format_slot)
    return [
        {"role": "user", "content": f"Answer the question directly and concisely. {content}"},
    ]


def question_text(example: Example) -> str:
    """The `{question}` of an example: the stem, then one line `A. text` per option.

    With options it ends in a line break, so that the format does not run into the last option.
    """
    if example.choices is None:
        return example.question
    options = zip(LETTERS, example.choices, strict=False)
    return "\n".join([example.question, *(f"{x}. {choice}" for x, choice in options)]) + "\n"


def gsm8k_format(example: Example) -> str:
    del example
    return "Give only the final numeric answer after ANSWER:, with no units."


def aime_format(example: Example) -> str:
    del example
    return "The answer is an integer in [0, 999]. Respond with ANSWER: <integer>."


def choice_format(example: Example) -> str:
    """MMLU-Pro (A--J), GPQA (A--D) and any other multiple choice, by the item's own options."""
    letters = option_letters(example)
    return f"Choose one option ({letters[0]}--{letters[-1]}). Respond with ANSWER: <letter>."


def code_format(example: Example) -> str:
    del example
    return "Give the whole function, with its imports, in one ```python block."


def open_format(example: Example) -> str:
    del example
    return "Give only the final answer after ANSWER:."


FORMATS = {
    "aime": aime_format,
    "choice": choice_format,
    "code": code_format,
    "gpqa": choice_format,
    "gsm8k": gsm8k_format,
    "mmlu_pro": choice_format,
    "open": open_format,
}


def _question_and_format(question: str, format_slot: str) -> str:
    gap = "" if question.endswith("\n") else " "
    return f"Question: {question}{gap}{format_slot}"

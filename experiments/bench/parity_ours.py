"""Our engine's greedy replies of every folder under checkpoints/, for parity_torch.py to compare.

python -m experiments.bench.parity_ours --out runs/parity.json
"""

import argparse
import json
import pathlib

from experiments.tiny_corpus import questions
from gradejax.generation.decode import generate
from gradejax.generation.sampling import GREEDY
from gradejax.generation.text import Chat, load_tokenizer
from gradejax.models.hf_weights import load_checkpoint
from gradejax.tasks.prompts import expert_messages, orchestrator_messages
from gradejax.tasks.reasoning_gym import ReasoningGymTask


def replies_of(folder: pathlib.Path, prompts, max_new_tokens: int) -> dict:
    """Prompts and greedy replies of one folder, as JSON.

    Args:
      folder: a model in Hugging Face format.
      prompts: message lists.
      max_new_tokens: limit of a reply.
    """
    checkpoint = load_checkpoint(folder)
    chat = Chat(load_tokenizer(folder), name=str(folder))
    rendered = [chat.render(messages) for messages in prompts]
    ids = [chat.encode_text(text) for text in rendered]
    stops = chat.stop_ids(checkpoint.generation_stop_ids)
    found = generate(
        checkpoint.model, checkpoint.params, ids, max_new_tokens=max_new_tokens, stop_ids=stops,
        sampling=GREEDY, seeds=[0] * len(ids), batch_size=32, vocab=chat.vocab,
    )  # fmt: skip
    rows = [
        {"messages": m, "prompt": text, "prompt_ids": list(p), "tokens": g.tokens,
         "logprobs": g.logprobs, "text": chat.decode(g.tokens)}
        for m, text, p, g in zip(prompts, rendered, ids, found, strict=True)
    ]  # fmt: skip
    return {"max_new_tokens": max_new_tokens, "stop_ids": list(stops), "replies": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.parity_ours", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--checkpoints", default="checkpoints", type=pathlib.Path)
    parser.add_argument("--out", default="runs/parity.json", type=pathlib.Path)
    parser.add_argument("--questions", default=60, type=int)
    parser.add_argument("--max_new_tokens", default=80, type=int)
    args = parser.parse_args()
    folders = sorted(p.parent for p in args.checkpoints.glob("*/config.json"))
    if not folders:
        raise SystemExit(f"no model folders under {args.checkpoints}")
    examples = questions("valid", args.questions)
    out = {}
    for folder in folders:
        messages = orchestrator_messages if folder.name == "orchestrator" else expert_messages
        prompts = [messages(e.question, ReasoningGymTask.format_slot(e)) for e in examples]
        out[str(folder)] = replies_of(folder, prompts, args.max_new_tokens)
        print(json.dumps({"folder": str(folder), "replies": len(prompts)}), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()

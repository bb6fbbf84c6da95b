"""torch transformers on the same folders: does it give the greedy texts that our engine gave?

    python -m experiments.bench.parity_ours --out runs/parity.json     # our environment
    python experiments/bench/parity_torch.py runs/parity.json          # one with torch

Needs torch, transformers and jinja2 only; imports nothing of ours. One JSON line a folder: how many
prompts give the same ids (by tokenizer.json, and by what AutoTokenizer makes of the folder), how
many replies have the same tokens and text, the largest difference of a log-probability, and for
each reply that differs torch's margin between its two best tokens where they part. A folder with
another reply makes the exit status 1.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast


def greedy(model, prompt, limit, pad):
    """Tokens of the folder's own generation config, one unpadded prompt at a time."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
            max_new_tokens=limit, pad_token_id=pad,
        )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def token_logprobs(model, prompt, tokens):
    """log p of each token and the margin between the two best at its place."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
    best = logits.topk(2).values
    table = logits.log_softmax(-1)
    return table[torch.arange(len(tokens)), torch.tensor(tokens)], best[:, 0] - best[:, 1]


def compare(folder, ours):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    model.eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    auto = AutoTokenizer.from_pretrained(folder)
    pad = tokenizer.pad_token_id or 0
    rows = ours["replies"]
    counts = dict.fromkeys(("prompt_ids", "auto_prompt_ids", "tokens", "texts"), 0)
    gap, margins = 0.0, []
    for row in rows:
        text = tokenizer.apply_chat_template(
            row["messages"], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        auto_ids = auto(text, add_special_tokens=False)["input_ids"]
        counts["prompt_ids"] += ids == row["prompt_ids"]
        counts["auto_prompt_ids"] += auto_ids == row["prompt_ids"]
        tokens = greedy(model, ids, ours["max_new_tokens"], pad)
        logprobs, margin = token_logprobs(model, ids, row["tokens"])
        gap = max(gap, float((logprobs - torch.tensor(row["logprobs"])).abs().max()))
        counts["texts"] += tokenizer.decode(tokens, skip_special_tokens=True) == row["text"]
        counts["tokens"] += tokens == row["tokens"]
        if tokens != row["tokens"]:
            pairs = enumerate(zip(tokens, row["tokens"], strict=False))
            parted = next((i for i, (a, b) in pairs if a != b), None)
            margins.append(None if parted is None else float(margin[parted]))
    odd = {k: sorted(map(str, v)) for k, v in info.items() if v}
    return {"folder": folder, "replies": len(rows), "equal": counts, "odd_keys": odd,
            "max_logprob_difference": gap, "margins_where_parted": margins}  # fmt: skip


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        found = json.load(file)
    torch.set_num_threads(1)
    worst = 0
    for folder, ours in found.items():
        result = compare(folder, ours)
        print(json.dumps(result), flush=True)
        worst |= result["equal"]["texts"] < result["replies"] or bool(result["odd_keys"])
    sys.exit(int(worst))


if __name__ == "__main__":
    main()

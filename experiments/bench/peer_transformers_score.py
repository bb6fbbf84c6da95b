"""A worker of ``experiments.bench.score``: torch transformers, value and adapter gradient.

Whole rows through the model, log-softmax, the sum of the last tokens' log-probabilities and its
gradient by low-rank adapters (A random, B zero) on all seven products of every layer, a few rows
at a time. Run by a Python that has torch and transformers; it needs nothing of this package.
"""

import argparse
import json
import resource
import sys
import time

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True, help="JSON file with lists of ids, equally long")
    parser.add_argument("--scored", type=int, required=True, help="tokens at the end of each")
    parser.add_argument("--at-once", type=int, required=True)
    args = parser.parse_args()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.requires_grad_(False)
    trained = []

    def adapt(linear):
        a = torch.nn.Parameter(torch.randn(linear.in_features, 8) / linear.in_features**0.5)
        b = torch.nn.Parameter(torch.zeros(8, linear.out_features))
        trained.extend((a, b))
        linear.register_forward_hook(lambda _, x, y: y + (x[0] @ a) @ b)

    for name, part in model.named_modules():
        if name.rsplit(".", 1)[-1] in TARGETS:
            adapt(part)
    with open(args.rows, encoding="utf-8") as file:
        rows = torch.tensor(json.load(file))
    facts = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({"ready": True} | facts), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        total = 0.0
        for piece in rows.split(args.at_once):
            logits = model(piece, logits_to_keep=args.scored + 1).logits[:, :-1]
            picked = logits.log_softmax(-1).gather(2, piece[:, -args.scored :, None])
            value = picked.sum()
            value.backward()
            total += value.item()
        for x in trained:
            x.grad = None
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"seconds": seconds, "tokens": rows.numel(), "value": total,
                          "peak_mb": peak}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

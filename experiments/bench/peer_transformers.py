"""A worker of ``experiments.bench.decode``: torch transformers' ``generate``, greedy.

Run by a Python that has torch and transformers; it needs nothing of this package.
"""

import argparse
import json
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, help="JSON file with lists of ids")
    parser.add_argument("--new", type=int, required=True)
    args = parser.parse_args()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.eval()
    model.generation_config.eos_token_id = None
    with open(args.prompts, encoding="utf-8") as file:
        prompts = json.load(file)
    length = max(map(len, prompts))
    tokens = torch.tensor([[0] * (length - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts])
    facts = {"torch": torch.__version__, "transformers": transformers.__version__,
             "threads": torch.get_num_threads()}  # fmt: skip
    print(json.dumps({"ready": True} | facts), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(tokens, attention_mask=mask, max_new_tokens=args.new,
                                 do_sample=False, pad_token_id=0)  # fmt: skip
        seconds = time.perf_counter() - start
        new = out[:, length:].tolist()
        print(json.dumps({"seconds": seconds, "tokens": sum(map(len, new)), "first": new[0]}),
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

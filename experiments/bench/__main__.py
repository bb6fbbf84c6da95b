"""The benches under one command: ``python -m experiments.bench NAME [options]``, one JSON line."""

import importlib
import sys

BENCHES = {
    "decode": "tokens a second of generation, against transformers or tunix",
    "score": "log-probabilities and their gradients, against transformers; memory",
    "lora": "generation with seven adapters mixed in a batch, against the base",
    "load": "host memory of loading a model",
    "gpu": "decoding, prefill and memory of the paper's pool on a GPU",
}


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in BENCHES:
        if argv and not argv[0].startswith("-"):
            print(f"error: no bench {argv[0]!r}; choose from {', '.join(BENCHES)}\n",
                  file=sys.stderr)  # fmt: skip
        listed = "\n".join(f"  {name:8} {what}" for name, what in BENCHES.items())
        known = bool(argv) and argv[0] in ("-h", "--help")
        print(f"{__doc__}\n\n{listed}", file=sys.stdout if known else sys.stderr)
        return 0 if known else 2
    try:
        return importlib.import_module(f"experiments.bench.{argv[0]}").main(argv[1:]) or 0
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

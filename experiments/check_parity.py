"""Is a model computed here as torch transformers computes it? Largest differences, layer by layer.

    python -m experiments.check_parity --model DIR [--tolerance 1e-4] [--length 24] [--text ...]

DIR is a model folder, a hub id or a .gguf file. Both sides run in float32 on the CPU: one row as it
is, and a batch left-padded by 0, 3 and 16. The first line whose difference is large says where to
look. Prints a table and one JSON line; leaves with status 1 when a difference of hidden states or
logits, relative to the largest value of torch's where that is above 1, exceeds the tolerance, and
with 2 when it cannot compare. Needs torch and transformers beside gradejax, which itself never
imports torch.
"""

import argparse
import importlib.util
import json
import pathlib

import numpy as np

from experiments import command
from gradejax.generation.checks import number, text, whole

PADS = (0, 3, 16)
_ROOM = f"the batch has rows that are {max(PADS)} longer, and all must fit the model's context"


def batch(ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the ids over and over, left-padded by each of PADS to one width: tokens, mask."""
    length = len(ids) + max(PADS)
    tokens = np.zeros((len(PADS), length), np.int32)
    mask = np.zeros((len(PADS), length), bool)
    for row, pad in enumerate(PADS):
        tokens[row, pad:], mask[row, pad:] = np.resize(ids, length - pad), True
    return tokens, mask


def our_states(checkpoint, tokens, mask) -> list[np.ndarray]:
    """Hidden states of the embeddings, after each block and after the final norm; then logits."""
    import jax
    import jax.numpy as jnp

    from gradejax.models.decoder import token_positions

    model, params = checkpoint.model, checkpoint.params
    tokens, mask = jnp.asarray(tokens), jnp.asarray(mask)
    states = [model.apply(params, tokens, mask, layer=0, method="hidden")]
    x, positions = model.apply(params, tokens, method="embed"), token_positions(mask)
    # Block by block, not compiled: one program a layer would take longer than it saves.
    for i in range(model.config.num_layers - 1):
        x = model.apply(params, x, positions, mask, (i,), method="blocks")
        states.append(x)
    out = jax.jit(model.apply)(params, tokens, mask)
    return [np.asarray(x, np.float32) for x in (*states, out.hidden, out.logits)]


def torch_states(path: pathlib.Path, tokens, mask) -> list[np.ndarray]:
    """The same of transformers, whose last hidden state is after the final norm."""
    import torch
    from transformers import AutoModelForCausalLM

    where = {"gguf_file": path.name} if path.is_file() else {}
    model = AutoModelForCausalLM.from_pretrained(
        path.parent if where else path, dtype=torch.float32, attn_implementation="eager", **where
    ).eval()
    ids, seen = torch.tensor(tokens).long(), torch.tensor(mask).long()
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=seen, output_hidden_states=True,
                    position_ids=(seen.cumsum(1) - 1).clamp(min=0))  # fmt: skip
    return [x.float().numpy() for x in (*out.hidden_states, out.logits)]


def differences(ours, theirs, mask) -> list[float]:
    """Largest difference at real places of each state, over max(1, torch's largest value)."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} states here, {len(theirs)} in transformers")
    found = []
    for a, b in zip(ours, theirs, strict=True):
        real, want = a[mask], b[mask]
        found.append(float(np.abs(real - want).max() / max(1.0, np.abs(want).max())))
    return found


def example_ids(path: pathlib.Path, vocab: int, length: int, words: str | None) -> list[int]:
    """Ids of a text, or a fixed draw from the vocabulary."""
    if words is None:
        return np.random.default_rng(0).integers(0, vocab, length).tolist()
    from gradejax.generation.text import load_tokenizer

    tokenizer = load_tokenizer(path)
    if tokenizer is None:
        raise ValueError(f"{path} has no tokenizer; leave --text out to use random ids")
    ids = tokenizer(text("--text", words))["input_ids"]
    if not ids:
        raise ValueError(f"--text {words!r:.200} has no tokens; leave it out to use random ids")
    if max(ids) >= vocab:
        raise ValueError(
            f"--text has token id {max(ids)}; the model's embedding holds 0 to {vocab - 1}: the "
            "tokenizer is not this model's"
        )
    return ids


def report(differing: dict[str, list[float]], tolerance: float) -> str:
    """The table, one line a state."""
    states = len(next(iter(differing.values())))
    names = ["embeddings", *(f"layer {i}" for i in range(1, states - 2)), "final norm", "logits"]
    lines = [f"{'':<12}" + "".join(f"{kind:>12}" for kind in differing)]
    for i, name in enumerate(names):
        row = [values[i] for values in differing.values()]
        flag = "" if np.max(row) <= tolerance else "  <-- above the tolerance"
        lines.append(f"{name:<12}" + "".join(f"{value:>12.2e}" for value in row) + flag)
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table; the exit status is 0 within the tolerance, 1 above it, 2 on an error."""
    args = _parse(argv)
    return command.run(lambda: int(not _compare(args)))


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.check_parity", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--model", required=True, help="folder, hub id or .gguf file")
    parser.add_argument("--revision", help="of a hub id")
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME",
                        help="an unknown setting of the model that changes nothing; repeat it")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--length", type=int, default=24, help="random ids in the row")
    parser.add_argument("--text", help="a text instead of random ids")
    return parser.parse_args(argv)


def _compare(args: argparse.Namespace) -> bool:
    number("--tolerance", args.tolerance, "a number >= 0", 0)
    whole("--length", args.length)
    if lost := [n for n in ("torch", "transformers") if importlib.util.find_spec(n) is None]:
        raise ImportError(
            f"check_parity compares with torch transformers; {' and '.join(lost)} cannot be "
            "imported here. Install gradejax, torch and transformers in one environment"
        )
    from gradejax.models.hf_weights import load_checkpoint

    checkpoint = load_checkpoint(args.model, revision=args.revision, ignore=args.ignore)
    path = pathlib.Path(checkpoint.path)
    config = checkpoint.config
    room = config.max_positions - max(PADS)
    if args.text is None and args.length > room:  # before so many are drawn
        raise ValueError(f"--length must be at most {room}, got {args.length}: {_ROOM}")
    ids = example_ids(path, config.vocab_size, args.length, args.text)
    if len(ids) > room:
        raise ValueError(f"expected a --text of at most {room} tokens, got {len(ids)}: {_ROOM}")
    solo = (np.asarray([ids], np.int32), np.ones((1, len(ids)), bool))
    found = {}
    for kind, (tokens, mask) in {"unpadded": solo, "padded": batch(ids)}.items():
        ours, theirs = our_states(checkpoint, tokens, mask), torch_states(path, tokens, mask)
        found[kind] = differences(ours, theirs, mask)
    print(report(found, args.tolerance))
    worst = float(np.max(list(found.values())))  # NaN if any is, which is not within a tolerance
    passed = worst <= args.tolerance
    print(json.dumps({"model": args.model, "family": checkpoint.config.family, "worst": worst,
                      "tolerance": args.tolerance, "passed": passed}), flush=True)  # fmt: skip
    return passed


if __name__ == "__main__":
    raise SystemExit(main())

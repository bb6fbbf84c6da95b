"""Train the tiny frozen experts under checkpoints/ with our own engine.

    python -m experiments.train_tiny_experts --workdir runs/tiny_experts --out checkpoints

About an hour and a half on 2 cores; seeded; a killed run goes on from its newest checkpoint. Each
role is a folder in Hugging Face format (config.json, model.safetensors in float16, tokenizer with
chat template, generation_config.json). ``--role`` trains one only.
"""

import argparse
import dataclasses
import json
import pathlib
import time

import jax
import numpy as np

from experiments.tiny_corpus import questions, sft_rows, train_tokenizer
from gradejax.generation.decode import generate
from gradejax.generation.sampling import GREEDY
from gradejax.generation.text import Chat, load_tokenizer
from gradejax.models.config import DecoderConfig, Rope
from gradejax.models.decoder import Decoder
from gradejax.models.hf_weights import load_checkpoint, save_checkpoint
from gradejax.tasks.prompts import expert_messages, orchestrator_messages
from gradejax.tasks.reasoning_gym import FAMILIES, ReasoningGymTask
from gradejax.training.sft import Packed, SFTConfig, pack, train_sft

VOCAB = 768
CONTEXT = 384
MAX_NEW_TOKENS = 80


@dataclasses.dataclass(frozen=True)
class Role:
    """One tiny model: which family of architectures, how large, how long it learns.

    ``stages`` are totals of steps: each stage goes on from the one before with the cosine schedule
    of its own total (a warm restart).
    """

    name: str
    family: str
    width: int
    num_layers: int
    mlp_width: int
    stages: tuple[int, ...]
    samples: int
    row_length: int
    seed: int


ROLES = {
    r.name: r
    for r in (
        Role("arithmetic", "qwen2", 128, 4, 384, (1800,), 100_000, 128, 1),
        Role("orchestrator", "qwen2", 64, 4, 192, (1500,), 100_000, 128, 4),
        Role("logic", "phi3", 128, 5, 384, (1200, 3000), 100_000, 224, 2),
        Role("algorithmic", "llama", 128, 4, 384, (1000, 3000), 100_000, 128, 3),
    )
}


def role_config(role: Role, stop_id: int) -> DecoderConfig:
    """The decoder of a role; heads of 32 (16 for the orchestrator), one key head for two."""
    head = 32 if role.width >= 128 else 16
    return DecoderConfig(
        family=role.family,
        vocab_size=VOCAB,
        width=role.width,
        num_layers=role.num_layers,
        num_heads=role.width // head,
        num_kv_heads=role.width // head // 2,
        head_dim=head,
        mlp_width=role.mlp_width,
        max_positions=CONTEXT,
        qkv_bias=role.family == "qwen2",
        tied=True,
        rope=Rope(theta=10000.0, original_max_positions=CONTEXT),
        stop_ids=(stop_id,),
    )


def encode_rows(role: Role, chat: Chat) -> list[tuple[list[int], list[int]]]:
    """Supervised samples of a role as token ids; the reply ends with the stop token."""
    rows = list(sft_rows(role.name, role.samples, role.seed))
    stop = [chat.tokenizer.eos_token_id]
    prompts = chat.tokenizer([chat.render(m) for m, _ in rows], add_special_tokens=False)
    replies = chat.tokenizer([r for _, r in rows], add_special_tokens=False)
    return [
        (p, r + stop) for p, r in zip(prompts["input_ids"], replies["input_ids"], strict=True)
    ]


def packed_rows(role: Role, chat: Chat, length: int, cache: pathlib.Path) -> Packed:
    """Packed samples, kept in ``cache`` so that a resumed run starts at once."""
    if cache.exists():
        with np.load(cache, allow_pickle=False) as z:
            return Packed(*(z[f.name] for f in dataclasses.fields(Packed)))
    samples = encode_rows(role, chat)
    fitting = [(p, r) for p, r in samples if len(p) + len(r) <= length]
    # Rows are sized to a role's own family; only a few off-family samples are longer.
    print(json.dumps({"role": role.name, "left_out": len(samples) - len(fitting)}), flush=True)
    packed = pack(fitting, length)
    partial = cache.with_suffix(".tmp.npz")
    np.savez(partial, **{f.name: getattr(packed, f.name) for f in dataclasses.fields(Packed)})
    partial.replace(cache)
    return packed


def accuracy(folder: pathlib.Path, split: str, n: int, *, orchestrator: bool) -> dict[str, float]:
    """Greedy accuracy of a saved model by family and difficulty."""
    checkpoint = load_checkpoint(folder)
    chat = Chat(load_tokenizer(folder), name=str(folder))
    examples = questions(split, n)
    messages = orchestrator_messages if orchestrator else expert_messages
    prompts = [
        chat.encode(messages(e.question, ReasoningGymTask.format_slot(e))) for e in examples
    ]
    replies = generate(
        checkpoint.model, checkpoint.params, prompts, max_new_tokens=MAX_NEW_TOKENS,
        stop_ids=chat.stop_ids(checkpoint.generation_stop_ids), sampling=GREEDY,
        seeds=[0] * len(prompts), batch_size=128,
    )  # fmt: skip
    right: dict[str, list[bool]] = {}
    for example, reply in zip(examples, replies, strict=True):
        judged = ReasoningGymTask.judge(chat.decode(reply.tokens), reply.finish_reason, example)
        for group in (example.family, f"{example.family}/{example.difficulty}", example.source):
            right.setdefault(group, []).append(judged.outcome.name == "RIGHT")
    return {k: round(float(np.mean(v)), 3) for k, v in sorted(right.items())}


def train_role(role: Role, workdir: pathlib.Path, out: pathlib.Path, sft: SFTConfig) -> None:
    """Train one role, write its folder and print its accuracy on validation questions."""
    workdir.mkdir(parents=True, exist_ok=True)
    folder = out / role.name
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(folder, VOCAB)
    chat = Chat(load_tokenizer(folder), name=role.name)
    stop = chat.tokenizer.eos_token_id
    data = packed_rows(role, chat, sft.length, workdir / f"{role.name}.npz")
    config = role_config(role, stop)
    start = time.time()

    def say(step: int, metrics: dict[str, float]) -> None:
        line = {"role": role.name, "step": step, "seconds": round(time.time() - start, 1)}
        print(json.dumps(line | {k: round(v, 4) for k, v in metrics.items()}), flush=True)

    for total in role.stages:
        stage = dataclasses.replace(sft, steps=total)
        params = train_sft(Decoder(config), data, stage, str(workdir / role.name), on_step=say)
    save_checkpoint(
        folder, config, params, dtype="float16", pad_token_id=chat.tokenizer.pad_token_id
    )
    generation = {"eos_token_id": stop, "pad_token_id": chat.tokenizer.pad_token_id}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    scores = accuracy(folder, "valid", 300, orchestrator=role.name == "orchestrator")
    print(json.dumps({"role": role.name, "valid": scores}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.train_tiny_experts", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--workdir", default="runs/tiny_experts", type=pathlib.Path)
    parser.add_argument("--out", default="checkpoints", type=pathlib.Path)
    parser.add_argument("--role", choices=sorted(ROLES), action="append")
    parser.add_argument("--steps", type=int, help="one stage of this many steps instead")
    args = parser.parse_args()
    for name in args.role or ROLES:
        role = ROLES[name]
        if args.steps:
            role = dataclasses.replace(role, stages=(args.steps,))
        sft = SFTConfig(rows=4096 // role.row_length, length=role.row_length, optimizer="muon",
                        learning_rate=5e-3, seed=role.seed)  # fmt: skip
        train_role(role, args.workdir, args.out, sft)
        jax.clear_caches()


if __name__ == "__main__":
    assert set(FAMILIES) < set(ROLES)
    main()

"""Greedy replies of a .gguf model to chat prompts, by our engine or by torch transformers.

    python -m experiments.bench.gguf_greedy ids FILE.gguf PROMPTS.json       # ours: prompt ids
    python experiments/bench/gguf_greedy.py torch FILE.gguf PROMPTS.json     # where torch is
    python -m experiments.bench.gguf_greedy compare FILE.gguf PROMPTS.json   # ours against it

PROMPTS.json holds {"max_new_tokens": n, "rows": [{"messages": [...]}, ...]}; the first call adds
``prompt_ids`` to each row (chat template and vocabulary of the file), the second ``tokens``,
``text``, ``margin`` (the least gap between torch's two best logits on the way) and whether
transformers' own reading of the file's tokenizer gives the same ids. The third prints one JSON line
and leaves with status 1 if a reply differs. The ``torch`` part imports nothing of ours.
"""

import json
import pathlib
import sys


def fill_ids(gguf: pathlib.Path, found: dict) -> None:
    from gradejax.generation.text import Chat, load_tokenizer

    chat = Chat(load_tokenizer(gguf), name=gguf.name)
    for row in found["rows"]:
        row["prompt_ids"] = chat.encode(row["messages"])


def fill_torch(gguf: pathlib.Path, found: dict) -> None:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    for row in found["rows"]:
        ids = torch.tensor([row["prompt_ids"]])
        own = tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, return_dict=False
        )
        with torch.no_grad():
            out = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                max_new_tokens=found["max_new_tokens"], return_dict_in_generate=True,
                output_logits=True,
            )  # fmt: skip
        best = torch.stack(out.logits).float().topk(2).values[:, 0]
        tokens = out.sequences[0, ids.shape[1] :].tolist()
        row |= {
            "tokens": tokens, "text": tokenizer.decode(tokens, skip_special_tokens=True),
            "margin": round(float((best[:, 0] - best[:, 1]).min()), 5),
            "same_ids_by_transformers": list(own) == row["prompt_ids"],
        }  # fmt: skip
    found["made_with"] = {"torch": torch.__version__, "transformers": transformers.__version__,
                          "file": gguf.name}  # fmt: skip


def compare(gguf: pathlib.Path, found: dict) -> dict:
    """How many prompt ids, token rows and texts of ours are the recorded ones."""
    from gradejax.generation.decode import generate
    from gradejax.generation.sampling import Sampling
    from gradejax.generation.text import Chat, load_tokenizer
    from gradejax.models.hf_weights import load_checkpoint

    checkpoint = load_checkpoint(gguf)
    chat = Chat(load_tokenizer(gguf), name=gguf.name)
    rows = found["rows"]
    prompts = [chat.encode(row["messages"]) for row in rows]
    out = generate(
        checkpoint.model, checkpoint.params, prompts, max_new_tokens=found["max_new_tokens"],
        stop_ids=chat.stop_ids(checkpoint.generation_stop_ids),
        sampling=Sampling(temperature=0.0), seeds=[0] * len(prompts), batch_size=len(prompts),
    )  # fmt: skip
    tokens = [reply.tokens for reply in out]
    texts = [chat.decode(t) for t in tokens]
    same = {
        "prompt_ids": sum(p == row["prompt_ids"] for p, row in zip(prompts, rows, strict=True)),
        "tokens": sum(t == row["tokens"] for t, row in zip(tokens, rows, strict=True)),
        "texts": sum(t == row["text"] for t, row in zip(texts, rows, strict=True)),
    }
    return {"bench": "gguf_greedy", "file": gguf.name, "prompts": len(rows), "equal": same}


def main(argv: list[str]) -> None:
    if len(argv) != 3 or argv[0] not in ("ids", "torch", "compare"):
        sys.exit(__doc__)
    gguf, path = pathlib.Path(argv[1]), pathlib.Path(argv[2])
    found = json.loads(path.read_text(encoding="utf-8"))
    if argv[0] == "compare":
        result = compare(gguf, found)
        print(json.dumps(result), flush=True)
        sys.exit(int(min(result["equal"].values()) < result["prompts"]))
    (fill_ids if argv[0] == "ids" else fill_torch)(gguf, found)
    rows = ",\n".join(" " + json.dumps(row, ensure_ascii=False) for row in found.pop("rows"))
    head = json.dumps(found, ensure_ascii=False)[:-1]
    path.write_text(f'{head}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

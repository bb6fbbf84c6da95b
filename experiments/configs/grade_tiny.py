"""GRADE on the shipped tiny experts: the main job.

    python -m experiments.run --config experiments/configs/grade_tiny.py --workdir runs/grade_tiny
"""

import ml_collections


def expert(model: str, manager: str, *, temperature: float = 0.0, seed: int = 0):
    """A seat: greedy at temperature 0, else sampled with its own seed."""
    return ml_collections.ConfigDict(
        {
            "model": f"checkpoints/{model}",
            "manager": manager,
            "seed": seed,
            "max_new_tokens": 80,
            "sampling": {"temperature": temperature, "top_k": 0, "top_p": 0.9},
        }
    )


def get_config():
    return ml_collections.ConfigDict(
        {
            "name": "grade_tiny",
            "mode": "train",  # or "evaluate": restore and evaluate only
            "seeds": (0, 1, 2),
            "pool": {
                "managers": ("quantitative", "symbolic"),
                "order": ("A1", "A2", "A3", "B1", "B2", "B3"),
                "agents": {
                    "A1": expert("arithmetic", "quantitative"),
                    "A2": expert("arithmetic", "quantitative", temperature=1.0, seed=2),
                    "A3": expert("arithmetic", "quantitative", temperature=1.0, seed=3),
                    "B1": expert("logic", "symbolic"),
                    "B2": expert("logic", "symbolic", temperature=1.0, seed=5),
                    "B3": expert("algorithmic", "symbolic"),
                },
                "orchestrator": {
                    "model": "checkpoints/orchestrator",
                    "max_new_tokens": 48,
                    "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
                },
            },
            "task": {
                # or "jsonl" with a path, a benchmark (python -m experiments.tasks lists them), or
                # any name with the two files below
                "name": "reasoning_gym",
                "kind": "",  # of file tasks: choice, integer, math, number, text
                "format": "",  # of file tasks; "" chooses by kind
                "train_file": "",
                "heldout_file": "",
                "train_questions": 2000,
                "heldout_questions": 1200,
                "path": "",  # of jsonl: the file; of a benchmark: a folder, "" finds one
                "subset": "",  # of a benchmark, or a generator of reasoning_gym
                "train_split": "",
                "heldout_split": "",
                "split_test": False,  # cut a benchmark that has a test set only
                "heldout_share": 0.4,  # of a file that is cut
                "shuffle_seed": -1,  # of the order of options; -1 as published
                "shots": 0,  # worked examples in the experts' prompts
            },
            "grade": {
                "d": 64,
                "group_size": 8,
                "inner_epochs": 2,
                "clip": 0.2,
                "kl_weight": 0.02,
                "learning_rate": 3e-4,
                "max_grad_norm": 0.0,
                "correct_weight": 2.0,
                "system_weight": 0.10,
                "agent_weight": 0.05,
                "cost_weight": 0.05,
                "log_prob_floor": -5.0,
                "cost": "params",
                "balance_weight": 0.01,
                "depth_weight": 0.02,
                "read_weight": 0.01,
                "supervised_weight": 1.0,
                "assign_threshold": 0.5,
                "prune_threshold": 0.35,
                "fixed_k": 0,
                "read_mask": "additive",
                "read_relaxation": "hard",
                "read_temperature": 1.0,
                "ratio": "component",
                "baseline": "group_mean",
                "scale": "std",
                "ddof": 0,
                "std_floor": 0.5,  # see BUILD_NOTES.md: 0, the paper's form, loses accuracy
                "ema_decay": 0.9,
                "calibration_momentum": 0.05,
                "memory_slots": 256,
                "anchors": 64,
            },
            "train": {"steps": 200, "batch_size": 48, "devices": 1},  # devices 0: all there are
            "checkpoint": {"save_every": 100, "keep": 2},
            "evaluation": {"replicates": 10000, "batch_size": 256},
            "store": {
                "path": "runs/features", "batch_size": 256, "on_error": "raise",
                "on_long": "missing",  # or "error": prompts that do not fit a model
            },  # fmt: skip
            "budget": {"tokens": 0, "money": 0.0, "seconds": 0.0},  # at APIs; 0: no limit
        }
    )

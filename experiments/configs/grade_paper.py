"""GRADE's own pool and hyperparameters (arXiv 2607.10836, Table 5 and its experimental setup).

Checked by shapes only (``tests/experiments/test_grade_paper.py``): the weights are some 30 GB and
are not shipped. With the six folders in place and a benchmark as JSONL:

    python -m experiments.run --config experiments/configs/grade_paper.py --workdir runs/paper \\
        --config.task.train_file=gsm8k.train.jsonl --config.task.heldout_file=gsm8k.test.jsonl

``MODEL_CONFIGS`` are the models' own published config.json entries, for the check.
"""

import ml_collections

_QWEN = {
    "model_type": "qwen2", "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "max_position_embeddings": 32768, "sliding_window": 32768, "use_sliding_window": False,
}  # fmt: skip
MODEL_CONFIGS = {
    "Qwen2.5-0.5B-Instruct": _QWEN | {
        "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
        "tie_word_embeddings": True, "eos_token_id": 151645,
    },
    "Qwen2.5-7B-Instruct": _QWEN | {
        "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
        "tie_word_embeddings": False, "eos_token_id": 151645,
    },
    "Phi-3-mini-4k-instruct": {
        "model_type": "phi3", "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064,
        "max_position_embeddings": 4096, "sliding_window": 2047, "tie_word_embeddings": False,
        "eos_token_id": 32000,
    },
    "Llama-3.2-3B-Instruct": {
        "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192,
        "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
        "eos_token_id": [128001, 128008, 128009],
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    },
}  # fmt: skip


def expert(model: str, manager: str, *, temperature: float, seed: int):
    return {
        "model": f"models/{model}",
        "dtype": "bfloat16",
        "manager": manager,
        "seed": seed,
        "max_new_tokens": 512,
        "sampling": {"temperature": temperature, "top_k": 0, "top_p": 1.0},
    }


def get_config():
    from experiments.configs import grade_tiny

    config = grade_tiny.get_config()
    config.name = "grade_paper"
    qwen, phi = "Qwen2.5-7B-Instruct", "Phi-3-mini-4k-instruct"
    config.pool.agents = ml_collections.ConfigDict(
        {
            # Seats that share a model differ by their draws (the paper does not print them).
            "A1": expert(qwen, "quantitative", temperature=0.7, seed=1),
            "A2": expert(qwen, "quantitative", temperature=0.7, seed=2),
            "A3": expert(qwen, "quantitative", temperature=0.7, seed=3),
            "B1": expert(phi, "symbolic", temperature=0.7, seed=4),
            "B2": expert(phi, "symbolic", temperature=0.7, seed=5),
            "B3": expert("Llama-3.2-3B-Instruct", "symbolic", temperature=0.7, seed=6),
        }
    )
    config.pool.orchestrator = ml_collections.ConfigDict(
        {
            "model": "models/Qwen2.5-0.5B-Instruct",
            "dtype": "bfloat16",
            "max_new_tokens": 128,
            "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
        }
    )
    config.task.name = "gsm8k"
    config.task.format = "gsm8k"
    config.task.kind = "number"
    config.task.train_questions = 0
    config.task.heldout_questions = 0
    # Table 5.
    config.grade.d = 64
    config.grade.group_size = 8
    config.grade.inner_epochs = 2
    config.grade.clip = 0.2
    config.grade.kl_weight = 0.02
    config.grade.learning_rate = 1e-4
    config.grade.cost_weight = 0.05
    config.grade.system_weight = 0.10
    config.grade.agent_weight = 0.05
    config.grade.log_prob_floor = -5.0
    config.grade.balance_weight = 0.01
    config.grade.depth_weight = 0.02
    config.grade.read_weight = 0.01
    config.grade.prune_threshold = 0.35
    config.grade.calibration_momentum = 0.05
    config.grade.anchors = 64
    config.grade.std_floor = 0.0  # as printed
    config.train.steps = 200
    config.train.batch_size = 48
    return config

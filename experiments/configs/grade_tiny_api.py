"""GRADE on the shipped tiny experts, of which one (B3) is asked through an OpenAI-compatible API.

Serve the algorithmic expert, with transformers' own server (in an environment with torch):

    pip install torch "transformers[serving]"
    HF_HUB_OFFLINE=1 transformers serve checkpoints/algorithmic --device cpu --dtype float32 --port 8000

or, without torch, with this repository's engine:

    python -m experiments.serve_tiny checkpoints/algorithmic --port 8000

and then

    python -m experiments.run --config experiments/configs/grade_tiny_api.py --workdir runs/grade_tiny_api

The server needs no key. For one that does, name the environment variable that holds it:
``--config.pool.agents.B3.api.key_variable=MY_KEY``.
"""  # noqa: E501


def get_config():
    from experiments.configs import grade_tiny

    config = grade_tiny.get_config()
    config.name = "grade_tiny_api"
    config.pool.agents.B3.update(
        {
            "provider": "openai",
            "api": {
                "base_url": "http://127.0.0.1:8000/v1",
                "key_variable": "",  # name of the environment variable that holds the key
                "concurrency": 4,  # calls under way at once
                "connect_timeout": 10.0,  # seconds, as the next four
                "read_timeout": 120.0,
                "deadline": 600.0,
                "backoff_base": 1.0,
                "backoff_cap": 30.0,
                "attempts": 5,
                "give_up_after": 20,  # questions in a row without a reply
                "input_price": 0.0,  # money for a million tokens
                "output_price": 0.0,
                "active_params": 885888,
                "token_field": "max_tokens",  # or "max_completion_tokens"
                "reply_model": "",  # the name that replies carry, where it is another
            },
        }
    )
    config.store.on_error = "missing"
    return config

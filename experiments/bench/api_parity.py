"""A tiny expert behind a real server answers as the same expert does here: one JSON line.

    python -m experiments.bench.api_parity --serve /path/to/bin/transformers

Starts ``transformers serve`` (from an environment with torch and ``transformers[serving]``) on the
loopback address, asks it and the local engine the same questions greedily, and compares texts,
finish reasons and token counts. ``--url http://127.0.0.1:8000/v1`` takes one that runs already.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from experiments.tiny_corpus import questions
from gradejax.experts.ask import Query, ask_all
from gradejax.experts.endpoint import Endpoint
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.replies import Reply
from gradejax.experts.spec import ExpertSpec
from gradejax.systems import asking
from gradejax.tasks.reasoning_gym import ReasoningGymTask

ROOT = pathlib.Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def transformers_server(executable: str, model: str, *, wait: float = 300.0) -> Iterator[str]:
    """Run ``transformers serve`` for one model; yields its base URL.

    Args:
      executable: the ``transformers`` command of an environment with torch.
      model: folder relative to the repository; also the name that requests ask for.
      wait: seconds for the server to come up.

    Raises:
      RuntimeError: it ended, or did not answer in time; with what it said.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [executable, "serve", model, "--device", "cpu", "--dtype", "float32", "--host",
               "127.0.0.1", "--port", str(port), "--log-level", "warning"]  # fmt: skip
    # One thread: for models this small more only get into each other's way.
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    with tempfile.TemporaryFile("w+") as said:
        server = subprocess.Popen(command, cwd=ROOT, env=os.environ | quiet, stdout=said,
                                  stderr=subprocess.STDOUT)  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}/v1"
            deadline = time.monotonic() + wait
            while not _answers(f"{url}/models"):
                if server.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    raise RuntimeError(
                        f"{' '.join(command)} does not serve:\n{said.read()[-2000:]}"
                    )
                time.sleep(0.2)
            yield url
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def compare(url: str, model: str = "checkpoints/algorithmic", n: int = 12) -> dict:
    """Ask a server and the local engine the same ``n`` validation questions, greedily.

    Returns:
      questions, replies, and how many have the same text, finish and token counts; seconds.
    """
    common = {"model": model, "manager": "m", "max_new_tokens": 80}
    api = Endpoint(base_url=url, concurrency=4)
    folder = {"model": str(ROOT / model)}
    registry = ExpertRegistry(
        (
            ExpertSpec(name="remote", provider="openai", api=api, **common),
            ExpertSpec(name="local", **common | folder),
        ),
        ExpertSpec(name="M0", model=str(ROOT / "checkpoints/orchestrator"), max_new_tokens=1),
        ("m",),
    )
    frozen = asking.open_frozen(registry, None)
    rows = [asking.messages_of(e, ReasoningGymTask) for e in questions("valid", n)]
    rows = [Query(f"{i}", q.expert, q.orchestrator) for i, q in enumerate(rows)]
    begin = time.perf_counter()
    got = ask_all(registry, rows, agents=["remote", "local"], providers=frozen.providers,
                  on_error="missing", max_missing=1.0)  # fmt: skip
    pairs = [
        (a, b) for a, b in zip(got["remote"], got["local"], strict=True) if isinstance(a, Reply)
    ]
    return {
        "bench": "api_parity", "model": model, "questions": n, "replies": len(pairs),
        "same_text": sum(a.text == b.text for a, b in pairs),
        "same_finish": sum(a.finish_reason == b.finish_reason for a, b in pairs),
        "same_prompt_tokens": sum(a.prompt_tokens == b.prompt_tokens for a, b in pairs),
        "same_tokens": sum(a.total_tokens == b.total_tokens for a, b in pairs),
        "different": [(a.text, b.text) for a, b in pairs if a.text != b.text][:3],
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.api_parity", description=__doc__.split("\n")[0]
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--serve", help="the transformers command of an environment with torch")
    where.add_argument("--url", help="base URL of a server that runs already")
    parser.add_argument("--model", default="checkpoints/algorithmic")
    parser.add_argument("--questions", type=int, default=60)
    options = parser.parse_args()
    if options.url:
        result = compare(options.url, options.model, options.questions)
    else:
        with transformers_server(options.serve, options.model) as url:
            result = compare(url, options.model, options.questions)
    print(json.dumps(result))
    return 0 if result["same_text"] == result["questions"] else 1


if __name__ == "__main__":
    sys.exit(main())

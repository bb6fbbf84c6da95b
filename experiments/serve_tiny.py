"""An OpenAI-compatible server on this repository's engine, for trying out experts behind an API.

    python -m experiments.serve_tiny checkpoints/algorithmic --port 8000

Answers ``POST /v1/chat/completions`` (messages, temperature, top_p, max_tokens, seed) and ``GET
/v1/models`` on the loopback address, without a key. For real use take a real server (vLLM,
llama.cpp, ``transformers serve``).
"""

import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gradejax.experts.local import LocalProvider
from gradejax.experts.model_pool import ModelPool
from gradejax.experts.replies import Missing, PromptTooLong
from gradejax.experts.spec import ExpertSpec
from gradejax.generation.sampling import Sampling

MAX_BODY = 1_000_000


class TinyServer(ThreadingHTTPServer):
    """Serves one model. Port 0 takes a free one; ``address`` is its base URL.

    Attributes:
      questions: the last message of each request answered, in order (tests count them).
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, model: str, port: int = 0):
        super().__init__(("127.0.0.1", port), _Handler)
        self.model = model
        self.questions: list[str] = []
        self._provider = LocalProvider(ModelPool(), batch_size=1)
        self._lock = threading.Lock()  # one row at a time: a CPU does not answer two faster

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def complete(self, body: dict) -> tuple[int, dict]:
        """(HTTP status, response) to a chat completion request."""
        if body.get("model") != self.model:
            return 404, _error(f"no model {body.get('model')!r}; this server has {self.model!r}")
        try:
            limit = body.get("max_completion_tokens") or body.get("max_tokens") or 256
            sampling = Sampling(
                temperature=float(body.get("temperature", 1.0)), top_k=int(body.get("top_k", 0)),
                top_p=float(body.get("top_p", 1.0)),
            )  # fmt: skip
            spec = ExpertSpec(
                name="served", model=self.model, sampling=sampling, max_new_tokens=limit
            )
            seed = int(body.get("seed") or 0) % 2**32  # the API's may be negative
            with self._lock:
                prompt = self._provider.render(spec, body["messages"])
                tokens = self._provider.encode(spec, prompt, "")
                (reply,) = self._provider.reply(spec, [tokens], [seed])
        except PromptTooLong as error:
            return 400, _error(str(error), "context_length_exceeded")
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            return 400, _error(f"{type(error).__name__}: {error}")
        if isinstance(reply, Missing):
            return 500, _error(reply.message)
        self.questions.append(body["messages"][-1]["content"])
        message = {"role": "assistant", "content": reply.text}
        return 200, {
            "id": f"chatcmpl-{len(self.questions)}", "object": "chat.completion",
            "created": int(time.time()), "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason}],
            "usage": {
                "prompt_tokens": reply.prompt_tokens, "completion_tokens": len(reply.tokens),
                "total_tokens": reply.total_tokens,
            },
        }  # fmt: skip


def _error(message: str, code: str | None = None) -> dict:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: TinyServer

    def do_GET(self):
        model = {"id": self.server.model, "object": "model", "owned_by": "gradejax"}
        if self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [model]})
        else:
            self._send(404, _error(f"no page {self.path}"))

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/v1/chat/completions" or not 0 < length <= MAX_BODY:
            self.close_connection = True  # the body is not read
            self._send(404, _error(f"no page {self.path} for a body of {length} bytes"))
            return
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError as error:
            self._send(400, _error(f"the body is not JSON: {error}"))
            return
        self._send(*self.server.complete(body if isinstance(body, dict) else {}))

    def _send(self, status: int, value: dict) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass  # a line a request would bury everything else


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.serve_tiny", description=__doc__.split("\n")[0]
    )
    parser.add_argument("model", help="folder in Hugging Face format, e.g. checkpoints/algorithmic")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    options = parser.parse_args()
    with TinyServer(options.model, options.port) as server:
        print(f"serving {options.model} at {server.address} (Ctrl-C ends)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")


if __name__ == "__main__":
    main()

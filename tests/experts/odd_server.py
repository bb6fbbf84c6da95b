"""An OpenAI-compatible server that misbehaves on purpose.

The last message of a request says what to do: "<mode> <anything>". A mode "a,b" behaves as "a" the
first time this message is seen, as "b" the second and so on, the last one for ever: "429,ok".
Every call is counted by its message, with its time and headers.
"""

import asyncio
import collections
import json
import socket
import struct
import threading
import time

MODEL = "odd-model"


def completion(text, *, finish="stop", model=MODEL, usage=True, **message):
    body = {
        "id": "c", "object": "chat.completion", "created": 1, "model": model,
        "choices": [{"index": 0, "finish_reason": finish,
                     "message": {"role": "assistant", "content": text, **message}}],
    }
    if usage:
        body["usage"] = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return body


class OddServer:
    """Runs in a thread; use as a context. `key` is sent back in what fails, as some servers do.
    `own` are further modes: bytes sent with status 200, or (status, bytes)."""

    def __init__(self, key="no key", delay=0.0, own=None):
        self.key, self.delay, self.own = key, delay, own or {}
        self.calls = collections.defaultdict(list)  # message -> times
        self.headers, self.bodies = [], []
        self.under_way = self.most_under_way = 0
        self._lock = threading.Lock()

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._tasks = set()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, ready):
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._client, "127.0.0.1", 0, backlog=256))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    @property
    def total(self):
        return sum(len(times) for times in self.calls.values())

    async def _client(self, reader, writer):
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _request(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        said = body["messages"][-1]["content"]
        with self._lock:
            seen = len(self.calls[said])
            self.calls[said].append(time.monotonic())
            self.headers.append(headers)
            self.bodies.append(body)
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.delay:
                await asyncio.sleep(self.delay)
            modes = said.split()[0].split(",")
            return await self._behave(modes[min(seen, len(modes) - 1)], said, writer)
        finally:
            with self._lock:
                self.under_way -= 1

    async def _behave(self, mode, said, writer):
        """What a mode does; returns whether the connection can be used again."""
        if mode in self.own:
            own = self.own[mode]
            status, data = own if isinstance(own, tuple) else (200, own)
            return await self._send(writer, data, status)
        if mode == "ok":
            return await self._send(writer, completion(f"reply to {said}"))
        if mode.isdigit() or mode.startswith("429:"):
            status, _, after = mode.partition(":")
            error = {"error": {"message": f"Incorrect or busy: {self.key}", "code": None}}
            # Blanks and commas have a meaning in messages: "_" and ";" stand for them.
            after = after.replace("_", " ").replace(";", ",")
            extra = {"Retry-After": after} if after else {}
            return await self._send(writer, error, int(status), extra)
        if mode == "hang":
            await asyncio.sleep(3600)
        if mode == "reset":
            # Linger of 0 makes close() send a reset.
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        if mode == "drip":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                         b"Content-Length: 100000\r\n\r\n")
            for _ in range(100000):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        whole = json.dumps(completion(f"reply to {said}")).encode()
        if mode == "cut":  # promises more than it sends
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                         b"Content-Length: %d\r\n\r\n" % len(whole) + whole[:len(whole) // 2])
            await writer.drain()
            return False
        bodies = {
            "half": whole[:len(whole) // 2],  # a whole body of half an object
            "html": b"<html><body>Bad gateway " + self.key.encode() + b"</body></html>",
            "list": b"[]", "deep": b"[" * 100_000, "bytes": b"\xff\xfe{}",
            "empty": json.dumps(completion("") | {"choices": []}).encode(),
            "model": json.dumps(completion("x", model="another-model")).encode(),
            "big": json.dumps(completion("y" * 2_000_000)).encode(),
            "error200": json.dumps({"error": {"message": f"upstream {self.key}"}}).encode(),
            "length": json.dumps(completion("the answer is 4", finish="length")).encode(),
            "nulllength": json.dumps(completion(None, finish="length", reasoning="so maybe 42")
                                     ).encode(),
            "null": json.dumps(completion(None)).encode(),
            "refusal": json.dumps(completion(None, refusal="I will not")).encode(),
            "filter": json.dumps(completion("par", finish="content_filter")).encode(),
            "tools": json.dumps(completion(None, finish="tool_calls")).encode(),
            "nousage": json.dumps(completion("four", usage=False)).encode(),
            "echo": json.dumps(completion(f"your key is {self.key}")).encode(),
        }
        return await self._send(writer, bodies[mode])

    async def _send(self, writer, body, status=200, extra=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json",
                 f"Content-Length: {len(data)}", *(f"{k}: {v}" for k, v in (extra or {}).items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + data)
        await writer.drain()
        return True

"""A stand-in for an OpenAI-compatible endpoint: a real HTTP server in a thread, its answers scripted by a test."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# what a script returns: (status, body), a body being an object (sent as JSON) or bytes
Script = Callable[[dict[str, Any]], tuple[int, Any]]


def completion(content: str | None, *, finish: str = "stop", refusal: str | None = None) -> tuple[int, dict[str, Any]]:
    message = {"role": "assistant", "content": content, "refusal": refusal}
    return 200, {
        "id": "x", "object": "chat.completion", "created": 0, "model": "stand-in",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }  # fmt: skip


def segments(*texts: str) -> tuple[int, dict[str, Any]]:
    return completion(json.dumps({"segments": list(texts)}))


class Endpoint:
    """`url` to talk to; `requests`: the bodies received so far, `headers` likewise."""

    def __init__(self, script: Script) -> None:
        self.script, self.requests, self.headers = script, list[dict[str, Any]](), list[dict[str, str]]()
        self.lock = threading.Lock()
        self.url = ""


@contextlib.contextmanager
def serve(script: Script) -> Iterator[Endpoint]:
    endpoint = Endpoint(script)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with endpoint.lock:
                endpoint.requests.append(body)
                endpoint.headers.append({name.lower(): value for name, value in self.headers.items()})
            assert self.path == "/v1/chat/completions"
            status, answer = endpoint.script(body)
            raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            with contextlib.suppress(OSError):  # a client that gave up has closed its end
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if isinstance(answer, bytes) else "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(raw)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

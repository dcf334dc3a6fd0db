"""An OpenAI-compatible server of llama.cpp or mistral.rs out of their wheels, which bring no command.

    L/bin/python benchmarks/wheel_servers.py llama.cpp|mistral.rs MODEL.gguf PORT SLOTS THREADS

L has xllamacpp or mistralrs. llama.cpp's is its own server; mistral.rs' wheel has the engine alone, so streams of chat
requests pass through Python's HTTP server. Its 0.9.5 failed on a batch of two prompts (CPU).
"""

import importlib
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def serve_llama(model: Path, port: int, slots: int, threads: int) -> None:
    xllamacpp = importlib.import_module("xllamacpp")
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.verbosity, settings.use_jinja = str(model), -1, True
    settings.n_parallel, settings.n_ctx = slots, slots * 2048
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.hostnames, settings.port = ["127.0.0.1"], port
    _server = xllamacpp.Server(settings)  # ends when nothing refers to it
    threading.Event().wait()


def serve_mistral(model: Path, port: int, slots: int, threads: int) -> None:
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    engine: Any = importlib.import_module("mistralrs")
    source = engine.Which.GGUF(quantized_model_id=str(model.parent), quantized_filename=model.name)
    runner, lock = engine.Runner(source, max_seqs=slots), threading.Lock()  # it refuses a call during another

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # /health
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked = {name: body[name] for name in ("messages", "max_tokens", "temperature")}
            request = engine.ChatCompletionRequest(model="default", stream=True, **asked)
            self.do_GET()
            with lock:
                chunks = runner.send_chat_completion_request(request)
            for chunk in chunks:
                usage = chunk.usage and {"completion_tokens": chunk.usage.completion_tokens}
                choices = [{"delta": {"content": each.delta.content}} for each in chunk.choices]
                self.wfile.write(f"data: {json.dumps({'choices': choices, 'usage': usage})}\n\n".encode())

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    serve = {"llama.cpp": serve_llama, "mistral.rs": serve_mistral}[sys.argv[1]]
    serve(Path(sys.argv[2]), *map(int, sys.argv[3:]))

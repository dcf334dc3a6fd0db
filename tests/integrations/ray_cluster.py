"""A Ray with `caw.integrations.ray_serve`: `python ray_cluster.py PORT CONFIG`; "listening", until its input ends."""

import sys

import ray
from ray import serve

from caw.integrations.ray_serve import app


def main() -> None:
    port, config = sys.argv[1:]
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20)
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    serve.run(app({"config": config}), name="caw")
    print("listening", file=sys.stderr, flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()

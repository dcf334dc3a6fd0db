"""The application of `caw.integrations.ray_serve`, by a short name: `serve run caw.serve.ray:app config=FILE`."""

from caw.integrations.ray_serve import app

__all__ = ["app"]

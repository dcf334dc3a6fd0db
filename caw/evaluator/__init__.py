"""The evaluator: the network that predicts capacity, its features, token classes and shipped weights."""

from typing import TYPE_CHECKING

from caw.lazy import lazy_names

if TYPE_CHECKING:
    from caw.evaluator.features import FeatureSpec
    from caw.evaluator.network import Evaluator, default_beta, warn_of_other_model
    from caw.evaluator.shelf import shipped, shipped_for
else:  # PyTorch takes a second to import, so it waits for the first name that needs it
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "caw.evaluator.features": "FeatureSpec",
            "caw.evaluator.network": "Evaluator default_beta warn_of_other_model",
            "caw.evaluator.shelf": "shipped shipped_for",
        },
    )

__all__ = ["Evaluator", "FeatureSpec", "default_beta", "shipped", "shipped_for", "warn_of_other_model"]

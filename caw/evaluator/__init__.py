"""The evaluator: the network that predicts capacity, its features, labels, training and shipped weights."""

from typing import TYPE_CHECKING

from caw.lazy import lazy_names

if TYPE_CHECKING:
    from caw.evaluator.features import FeatureSpec
    from caw.evaluator.network import Evaluator, check_model, default_beta, shipped, shipped_for
else:  # labels and settings are read without PyTorch
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "FeatureSpec": "caw.evaluator.features",
            **dict.fromkeys(
                ("Evaluator", "check_model", "default_beta", "shipped", "shipped_for"), "caw.evaluator.network"
            ),
        },
    )

__all__ = ["Evaluator", "FeatureSpec", "check_model", "default_beta", "shipped", "shipped_for"]

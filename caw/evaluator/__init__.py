"""The evaluator: the network that predicts capacity, its features, labels, training and shipped weights."""

from caw.evaluator.features import FeatureSpec
from caw.evaluator.network import Evaluator, check_model, shipped, shipped_for

__all__ = ["Evaluator", "FeatureSpec", "check_model", "shipped", "shipped_for"]

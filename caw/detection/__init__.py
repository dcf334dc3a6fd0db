"""Detection: is a text marked with this key? Needs the text alone, no model and no prompt."""

from caw.detection.detector import DetectionResult, Detector, detect

__all__ = ["DetectionResult", "Detector", "detect"]

"""Detection: test texts for a key's watermark. Needs only the text, no model and no prompt.

    detect, Detector        p-value of texts for one watermark; token weights, mid-p, normalisation, payloads,
                            marked parts
    detect_any              several keys and formats at once (Holm)
    detect_keys, KeySearch  thousands of keys at once (Sidak)
    locate                  the marked parts of a long text
    null_report, plot_qq    false-positive rates of a key, measured on your own texts
    power_table             detection rate by text length
    estimate_weights        a token-weight table from texts of other keys

A p-value of p means: for any text, at most a share p of all keys gives it p or less. This is exact, and it is a
statement about keys. It is not a rate for one fixed key and many texts of one kind: such texts share phrases, phrases
are evidence, and a key that happens to favour them scores all these texts a little high. Measured on 25,119 GSM8K texts
and 355 texts of a model, five keys each, texts with p <= 0.01: KGW lefthash 0.2 % to 1.5 %, its transformers format 0.5
% to 3.0 %, Unigram 0.1 % to 1.8 %, KGW selfhash 0.4 % to 1.1 %, EXP and SynthID, whose contexts of four tokens rarely
repeat, 0.8 % to 1.1 %. With evidence counted once in the whole corpus, no rate was above its level by more than its 95
% interval. So measure the key to be deployed on the kind of text that it will test (`caw detect --null-report`), and
prefer wide contexts where false alarms are costly.
"""

from caw.detection.detector import Detector, detect, locate
from caw.detection.key_list import KeyListResult, detect_any
from caw.detection.many_keys import KeySearch, KeySearchResult, detect_keys
from caw.detection.null_rates import NullReport, null_report, plot_qq
from caw.detection.power import PowerRow, power_table
from caw.detection.regions import Region
from caw.detection.result import DetectionResult
from caw.detection.weight_estimates import estimate_weights
from caw.detection.weights import TokenWeights

__all__ = [
    "DetectionResult",
    "Detector",
    "KeyListResult",
    "KeySearch",
    "KeySearchResult",
    "NullReport",
    "PowerRow",
    "Region",
    "TokenWeights",
    "detect",
    "detect_any",
    "detect_keys",
    "estimate_weights",
    "locate",
    "null_report",
    "plot_qq",
    "power_table",
]

"""Detection: is a text marked with this key? Needs the text alone, no model and no prompt.

    detect, Detector        p-value of texts for one watermark; weights per token, mid-p, normalisation, payloads,
                            marked parts
    detect_any              several keys and formats at once (Holm)
    detect_keys, KeySearch  thousands of keys at once (Sidak)
    locate                  where in a long text the marked part is
    null_report, plot_qq    false-positive rates of a key, measured on text of one's own
    power_table             share of marked texts found, by length
    estimate_weights        a table of weights per token id from texts of other keys

What a p-value of p means: whatever the text, a share of at most p of all keys gives it p or less. That is exact, and it
is about keys. For one fixed key and many texts of one kind it is not a rate: such texts share phrases, phrases are
evidence, and a key that happens to like them scores all of these texts a little high. Measured on 25,119 GSM8K texts
and 355 of a model, five keys each, texts with p <= 0.01: KGW lefthash 0.2 % to 1.5 %, its transformers format 0.5 % to
3.0 %, Unigram 0.1 % to 1.8 %, KGW selfhash 0.4 % to 1.1 %, EXP and SynthID, whose contexts of four tokens hardly
repeat, 0.8 % to 1.1 %. With evidence counted once in the whole corpus no rate lay above its level by more than its 95 %
interval. So measure the key that is to be deployed on the kind of text it will judge (`caw detect --null-report`), and
prefer wide contexts where false alarms are dear.
"""

from caw.detection.detector import Detector, detect
from caw.detection.key_list import KeyListResult, detect_any
from caw.detection.location import locate
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

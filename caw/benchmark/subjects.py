"""Models and prompts to measure with: a real model, or random weights with a real model's shapes."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from caw.benchmark.sizes import SHAPES
from caw.evaluator import Evaluator, FeatureSpec
from caw.evaluator.shelf import shipped
from caw.evaluator.token_classes import CLASSES, class_table
from caw.models import load_model
from caw.models.device import resolve_device, resolve_dtype
from caw.models.facts import vocabulary_size
from caw.models.packed import pack_model
from caw.triton_kernels.packed_weights_ref import FORMATS

POSITIONS = 32768
QUESTION = "Tell me about the history of tea."
SENTENCES = (
    "The harbour froze every winter until the warm current moved further north.",
    "Seven of the letters were never answered, and the eighth came back unopened.",
    "A good knife needs less force, so it slips less often than a blunt one.",
    "The committee met twice a year and agreed on very little.",
    "If the train is late, the bus to the valley will have gone.",
    "The first map of the coast had the river on the wrong side of the town.",
)


@dataclass(frozen=True)
class Subject:
    """The measured subject: model, tokenizer, the evaluator of capacity policies and its source."""

    model: Any
    tokenizer: Any
    evaluator: Evaluator | str
    evaluator_source: str
    text: bool  # whether prompts are text, else random ids


def load_subject(
    name: str, shapes: str | None, dtype: str, device: str | None, evaluator: str | None, weights: str | None = None
) -> Subject:
    """The model `name`, or random weights of `shapes`, which never end a text; untrained evaluators cost the same."""
    if shapes is not None:
        model = random_model(shapes, dtype, device, weights)
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        tokenizer = number_tokenizer(model.config.vocab_size)
    else:
        model, tokenizer = load_model(name, device=device, dtype=dtype, quantization=weights)
    if evaluator is None and shapes is None and name in shipped():
        evaluator = name
    if evaluator is not None:
        return Subject(model, tokenizer, evaluator, evaluator, shapes is None)
    network = untrained_evaluator(class_table(tokenizer, vocabulary_size(model)))
    return Subject(model, tokenizer, network, "random weights", shapes is None)


def untrained_evaluator(token_class: torch.Tensor) -> Evaluator:
    """Random weights with the inputs of the evaluators that ship, token classes among them: it costs the same."""
    torch.manual_seed(0)
    return Evaluator(FeatureSpec(classes=len(CLASSES)), token_class=token_class).eval().requires_grad_(False)


def random_model(shapes: str, dtype: str, device: str | None, weights: str | None = None, **changes: Any) -> Any:
    """A model of these shapes with random weights, made where it will run: its speed is that of the real one.

    weights: "fp8", "int8" or "int4" as a GPU reads them. changes: entries of its configuration to replace.
    """
    if weights not in (None, *FORMATS):
        raise ValueError(f"weights must be one of {', '.join(FORMATS)}, got {weights!r}; leave it out for dense ones")
    if shapes not in SHAPES:
        raise ValueError(f"shapes must be one of {', '.join(SHAPES)}, got {shapes!r}; choose one of these")
    place = resolve_device(device)
    settings = {"model_type": "llama", "max_position_embeddings": POSITIONS, **SHAPES[shapes], **changes}
    config = AutoConfig.for_model(**settings)
    torch.manual_seed(0)
    with torch.device(place):
        model = AutoModelForCausalLM.from_config(config, dtype=resolve_dtype(dtype, place))
    model = model.eval().requires_grad_(False)
    return model if weights is None else pack_model(model, weights, place)


def number_tokenizer(vocab_size: int) -> Any:
    """A tokenizer whose tokens are numbers, for models that have none."""
    core = Tokenizer(WordLevel({str(i): i for i in range(vocab_size)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="0")


def make_prompts(subject: Subject, batch: int, length: int) -> list[list[int]]:
    """`batch` prompts of `length` ids that differ from the first on: sentences and a question, or random ids."""
    vocab_size = subject.model.config.get_text_config(decoder=True).vocab_size
    prompts = []
    for row in range(batch):
        if subject.text:
            prompts.append(_text_prompt(subject.tokenizer, length, row))
        else:
            generator = torch.Generator().manual_seed(row)
            prompts.append(torch.randint(3, vocab_size, (length,), generator=generator).tolist())
    return prompts


def _text_prompt(tokenizer: Any, length: int, row: int) -> list[int]:
    question = [{"role": "user", "content": QUESTION}]
    text = QUESTION
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    tail = tokenizer(text, add_special_tokens=False)["input_ids"]
    filler: list[int] = []
    shuffle = random.Random(row)
    while len(filler) + len(tail) < length:
        sentence = f"{row + shuffle.randint(1, 99)}. {shuffle.choice(SENTENCES)}\n"
        filler += tokenizer(sentence, add_special_tokens=False)["input_ids"]
    return [*filler[: max(0, length - len(tail))], *tail][-length:]

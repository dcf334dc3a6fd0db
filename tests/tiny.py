"""A tiny random Llama with a tokenizer of its own, as a folder: a whole model in a second, without a network."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 384
END = "<|end|>"
TEXT = [
    "a small text about a small model and its small tokenizer, which knows a few words and every byte",
    "the sky is blue because the air scatters blue light more than red light",
]
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def tiny_tokenizer(*, chat: bool = True) -> Any:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(TEXT, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, pad_token=END)
    if chat:
        tokenizer.chat_template = CHAT
    return tokenizer


def tiny_model(vocab_size: int, *, positions: int = 512) -> Any:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=positions, initializer_range=0.5, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def save_tiny(folder: Path, *, chat: bool = True, positions: int = 512) -> Path:
    tokenizer = tiny_tokenizer(chat=chat)
    model = tiny_model(len(tokenizer), positions=positions)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

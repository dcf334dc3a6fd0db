"""Sizes of `caw benchmark`, and real models' shapes for random weights; the command line needs no PyTorch for it."""

from typing import Any

# what each size changes in `BenchmarkSettings`
SIZES: dict[str, dict[str, Any]] = {
    # an answer within two minutes on two cores: each policy's cost, and what a foreign decode and watermark cost
    "quick": {
        "modes": ("kgw", "kgw+caw", "unigram+caw", "exp+caw", "transformers", "transformers-kgw"),
        "tokens": 32, "rounds": 5, "max_seconds": 45.0,
    },
    "standard": {},
    "full": {"modes": ("all",), "batches": (1, 8), "prompts": (128, 1024), "tokens": 200},
}  # fmt: skip


# arguments of a transformers config
SHAPES: dict[str, dict[str, Any]] = {
    "llama-2-7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "llama-2-13b": {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
                    "num_attention_heads": 40},
    "llama-3-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                   "num_key_value_heads": 8, "vocab_size": 128256},
    "qwen2.5-1.5b": {"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                     "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
                     "tie_word_embeddings": True},
    "smollm2-135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
                     "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True},
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "vocab_size": 2000},
}  # fmt: skip

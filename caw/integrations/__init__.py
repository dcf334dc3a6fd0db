"""The watermarks inside engines that have a decoder of their own.

transformers     a logits processor for `model.generate`, and a `custom_generate` folder
vllm             a logits processor for vLLM's server
vllm_config      which texts vLLM marks, and how
"""

"""The watermarks inside engines that have a decoder of their own.

transformers     a logits processor for `model.generate`, and a `custom_generate` folder
profiles         the operator's file for the engines below: which texts are marked, and how
engine_texts     their marked requests, on `caw.Chooser`
layout           the white space of their JSON
vllm             a logits processor for vLLM's server
vllm_answers     a header of its answers
sglang           a custom logit processor for SGLang
ray_serve        the server of `caw serve` as a deployment of Ray Serve
"""

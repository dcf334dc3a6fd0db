"""Every torch op of this library: schema, reference, fake, dispatch. Ops are registered nowhere else.

CPU tensors go to the compiled extension if it has a kernel, otherwise to the PyTorch reference; CUDA tensors go to the
Triton kernels (`registering`). `references()` requests PyTorch explicitly; there is no silent fallback on a GPU.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from caw import _ext
from caw.capacity import evaluate_capacity_ref
from caw.io.show import shown
from caw.ladder import race_winner_ref, select_candidate_ref
from caw.ops_ref import fakes
from caw.ops_ref.block_types import packed_bytes
from caw.ops_ref.decoder_stack_ref import decoder_stack_ref
from caw.ops_ref.draw_scores_ref import draw_scores_ref
from caw.ops_ref.evidence_ref import count_evidence_ref, show_evidence_ref
from caw.ops_ref.permutation_ref import generator_words_ref, permutation_contains_ref, permutation_green_ref
from caw.ops_ref.prefill_layer_ref import prefix_attention_ref
from caw.text_scores import score_tokens_ref
from caw.triton_kernels.commit_kv_ref import commit_kv_ref, commit_step_ref
from caw.triton_kernels.decision_step_ref import decision_step_ref
from caw.triton_kernels.decoder_layer_ref import decoder_layer_ref
from caw.triton_kernels.enumerate_candidates_ref import enumerate_candidates_ref
from caw.triton_kernels.evaluator_step_ref import evaluator_step_ref
from caw.triton_kernels.ladder_step_ref import ladder_step_ref
from caw.triton_kernels.packed_weights_ref import unpack_weight_ref
from caw.triton_kernels.penalise_logits_ref import penalise_logits_ref
from caw.triton_kernels.race_ladder_ref import race_ladder_ref
from caw.triton_kernels.rms_norm_ref import rms_norm_ref
from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref
from caw.triton_kernels.sibling_attention_ref import sibling_attention_packed_ref, sibling_attention_ref
from caw.triton_kernels.small_linear_ref import packed_linear_ref, small_linear_ref
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref
from caw.triton_kernels.tournament_ref import tournament_ref
from caw.triton_kernels.warp_logits_ref import warp_logits_ref

NAMESPACE = "caw"
library = torch.library.Library(NAMESPACE, "DEF")


def has_kernel(name: str, device: str) -> bool:
    """Return whether the op of that name has a kernel for the device type ("cpu", "cuda")."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{name}", device.upper()))


def launcher(module: str, function: str) -> Callable[..., Any]:
    """Return the launcher of a Triton kernel, imported at its first call: this library imports without Triton."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            kernels = importlib.import_module(f"caw.triton_kernels.{module}")
        except ModuleNotFoundError as error:
            if error.name != "triton":
                raise
            raise ImportError(
                f"caw.{function} on a CUDA tensor requires Triton 3.6 or newer, found none; install it with `pip "
                "install triton`, or use backend='reference'"
            ) from error
        return getattr(kernels, function)(*args, **kwargs)

    return call


def register(
    schema: str, reference: Callable[..., Any] | None, fake: Callable[..., Any], triton: str | None = None
) -> Any:
    """Define an op; its CPU kernel is the extension's if there is one, otherwise the reference if it is registered
    here.

    `triton` names the module in caw.triton_kernels whose function of the op's name serves CUDA tensors.
    """
    name = schema.split("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    if reference is not None and not has_kernel(name, "cpu"):
        library.impl(name, reference, "CPU")
    if triton is not None and not has_kernel(name, "cuda"):
        library.impl(name, launcher(triton, name), "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
    return getattr(torch.ops.caw, name).default


# ---- topk_softmax: exact, stable top-K of each row with its logsumexp ------------------------------------------------
topk_softmax = register(
    "topk_softmax(Tensor logits, int k, Tensor? rows=None) -> (Tensor, Tensor, Tensor, Tensor)", topk_softmax_ref,
    fakes.topk_softmax_fake, triton="topk_softmax",
)  # fmt: skip

# ---- sibling_attention: C candidates over the committed prefix and themselves ----------------------------------------
sibling_attention = register(
    "sibling_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor k_own, Tensor v_own, Tensor lengths, "
    "float scale, int? window=None, float? softcap=None, Tensor? sinks=None) -> Tensor", sibling_attention_ref,
    fakes.attention_fake, triton="sibling_attention",
)  # fmt: skip
# packed: of each sequence as many candidates as it has; prefix: each row with a length of its own, tokens of prompts,
#   on a CPU only
sibling_attention_packed = register(
    "sibling_attention_packed(Tensor q, Tensor k_cache, Tensor v_cache, Tensor k_own, Tensor v_own, Tensor lengths, "
    "Tensor rows, float scale, int? window=None, float? softcap=None, Tensor? sinks=None) -> Tensor",
    sibling_attention_packed_ref, fakes.attention_fake, triton="sibling_attention",
)  # fmt: skip
prefix_attention = register(
    "prefix_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor k_own, Tensor v_own, Tensor lengths, "
    "Tensor rows, float scale, int? window=None, float? softcap=None, Tensor? sinks=None) -> Tensor",
    prefix_attention_ref, fakes.attention_fake,
)  # fmt: skip

# ---- commit_kv: the chosen sibling's keys and values become part of the cache, in place ------------------------------
commit_kv = register(
    "commit_kv(Tensor(a!) store, Tensor scratch, Tensor choice, Tensor(b!) lengths, Tensor active) -> ()",
    commit_kv_ref, lambda *args: None, triton="commit_kv",
)  # fmt: skip
# commit_step: the same, and the chosen candidate's logits and record become the sequence's, in one launch
commit_step = register(
    "commit_step(Tensor(a!) store, Tensor scratch, Tensor choice, Tensor(b!) lengths, Tensor active, "
    "Tensor(c!) logits, Tensor step_logits, Tensor(d!)[] records, Tensor[] following, Tensor? alive=None) -> ()",
    commit_step_ref,
    lambda *args, **alive: None,
    triton="commit_kv",
)

# ---- evaluate_capacity: the evaluator's network ----------------------------------------------------------------------
evaluate_capacity = register(
    "evaluate_capacity(Tensor features, Tensor[] weights) -> Tensor",
    evaluate_capacity_ref,
    lambda features, weights: features.new_empty(features.shape[:1]),
    triton="evaluator_step",
)

# ---- select_candidate: which rung of a ladder a strength chooses -----------------------------------------------------
select_candidate = register(
    "select_candidate(Tensor candidates, Tensor needs, Tensor counts, Tensor strength, int rule, float full) -> Tensor",
    select_candidate_ref,
    lambda candidates, needs, counts, strength, rule, full: torch.empty_like(counts),
    triton="evaluator_step",
)

# ---- evaluator_step: records -> capacity -> strength -> chosen candidate, in one launch -----------------------------
evaluator_step = register(
    "evaluator_step(Tensor[] probs, Tensor[] weights, Tensor candidates, Tensor needs, Tensor counts, Tensor pending, "
    "Tensor pending_strength, Tensor pending_capacity, Tensor factor, int k, int transform, float theta, float beta, "
    "int rule, float full, Tensor? extra=None) -> (Tensor, Tensor, Tensor)",
    functools.partial(evaluator_step_ref, evaluate=evaluate_capacity, select=select_candidate),
    fakes.evaluator_step_fake,
    triton="evaluator_step",
)

# ---- race_winner: who wins a race over whole rows of logits float32 [B, V], -inf = out; int64 [B] --------------------
race_winner = register(
    "race_winner(Tensor logits, Tensor context, Tensor key, float temperature=1.0) -> Tensor",
    race_winner_ref,
    lambda logits, context, key, temperature=1.0: torch.empty_like(key),
    triton="race_winner",
)

# ---- enumerate_candidates: the whole ladder of each row of a native format; scheme: see watermarks/base.py -----------
enumerate_candidates = register(
    "enumerate_candidates(Tensor values, Tensor ids, Tensor race, Tensor scores, Tensor context, Tensor key, "
    "int scheme, int threshold, float full, float max_strength) -> (Tensor, Tensor, Tensor)",
    enumerate_candidates_ref,
    fakes.enumerate_candidates_fake,
    triton="enumerate_candidates",
)

# ---- race_ladder: the ladders of races whose values are known, float64 [B, K]: formats without a kernel ------------
race_ladder = register(
    "race_ladder(Tensor values, Tensor ids, Tensor race, float full, float max_strength, bool scale) "
    "-> (Tensor, Tensor, Tensor)", race_ladder_ref, fakes.race_ladder_fake, triton="race_ladder",
)  # fmt: skip

# ---- ladder_step, decision_step: what a captured step does before its forward, and from its records to its results ---
ladder_step = register(
    "ladder_step(Tensor values, Tensor ids, Tensor race, Tensor scores, Tensor padded, Tensor tally, Tensor key, "
    "Tensor pending, Tensor? ends, int window, int scheme, int threshold, float full, float max_strength, "
    "bool deduplicate, int slots) -> (Tensor, Tensor, Tensor, Tensor)",
    functools.partial(ladder_step_ref, enumerate_ladders=enumerate_candidates),
    fakes.ladder_step_fake,
    triton="ladder_step",
)

decision_step = register(
    "decision_step(Tensor[] probs, Tensor[] ids, Tensor[] weights, Tensor? table, Tensor candidates, Tensor needs, "
    "Tensor? counts, Tensor(a!)[] pending, Tensor factor, Tensor? given, Tensor logsumexp, Tensor(b!) padded, "
    "Tensor(c!) tally, Tensor budgets, Tensor ends, Tensor(d!) active, Tensor(e!) ring, Tensor(f!)? floats, "
    "Tensor(g!) cursor, int slots, int window, int k, "
    "int transform, int classes, float theta, float beta, int rule, float full, Tensor? carried=None) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    functools.partial(decision_step_ref, evaluate=evaluate_capacity, select=select_candidate),
    fakes.decision_step_fake,
    triton="decision_step",
)

# ---- sampling_noise: Gumbel draws float32 [B, V] of contexts int64 [B, W] under keys int64 [B] -----------------------
sampling_noise = register(
    "sampling_noise(Tensor context, Tensor key, int vocab_size) -> Tensor",
    sampling_noise_ref,
    lambda context, key, vocab_size: context.new_empty((context.shape[0], vocab_size), dtype=torch.float32),
    triton="sampling_noise",
)

# ---- penalise_logits: logits float32 [B, V] with bias and penalties, of the rows that have any -----------------------
penalise_logits = register(
    "penalise_logits(Tensor logits, Tensor tokens, Tensor wanted, Tensor numbers, Tensor prompts, Tensor bias) "
    "-> Tensor",
    penalise_logits_ref,
    lambda logits, *args: logits.new_empty(logits.shape),
    triton="penalise_logits",
)

# ---- warp_logits: what the sampler keeps of logits float32 [B, V], the rest -inf -------------------------------------
warp_logits = register(
    "warp_logits(Tensor logits, Tensor wanted, Tensor temperatures, Tensor top_ks, Tensor one_minus_top_ps, "
    "Tensor min_ps) -> Tensor",
    warp_logits_ref,
    lambda logits, *args: logits.new_empty(logits.shape),
    triton="warp_logits",
)
# warp_recorded: the same of logits whose record is known; only a GPU need not search the row then
warp_recorded = register(
    "warp_recorded(Tensor logits, Tensor values, Tensor ids, Tensor wanted, Tensor temperatures, Tensor top_ks, "
    "Tensor one_minus_top_ps, Tensor min_ps) -> Tensor", lambda logits, values, ids, *rows: warp_logits(logits, *rows),
    lambda logits, *args: logits.new_empty(logits.shape), triton="warp_logits",
)  # fmt: skip

# ---- draw_scores: logits plus noise of the rows that draw, and their record, for steps that read back. CPU only ------
draw_scores = register(
    "draw_scores(Tensor warped, Tensor drawn, Tensor context, Tensor key, int k, float reach) "
    "-> (Tensor, Tensor, Tensor)",
    draw_scores_ref,
    fakes.draw_scores_fake,
)

# ---- tournament: SynthID's winners int64 [B, m] after each of m layers -----------------------------------------------
tournament = register(
    "tournament(Tensor warped, Tensor scores, Tensor first, Tensor context, Tensor table, int layers) -> Tensor",
    tournament_ref,
    lambda warped, scores, first, context, table, layers: first.new_empty((first.shape[0], layers)),
    triton="tournament",
)

# ---- score_tokens: (values float64 [n], selfhash seeds int64 [n] or [0]) under keys int64 [n], one a token -----------
score_tokens = register(
    "score_tokens(Tensor tokens, int window, Tensor key, int scheme, int threshold) -> (Tensor, Tensor)",
    score_tokens_ref,
    lambda tokens, window, key, scheme, threshold: (
        tokens.new_empty(tokens.shape, dtype=torch.float64),
        tokens.new_empty((tokens.shape[0] if scheme == 1 else 0,)),
    ),
)

# ---- show_evidence, count_evidence: what a detector would count of texts in the making, one token at a time ----------
show_evidence = register(
    "show_evidence(Tensor padded, Tensor counts, Tensor tokens, Tensor seen, Tensor distinct, int window, Tensor key, "
    "int scheme, int threshold) -> (Tensor, Tensor, Tensor)",
    show_evidence_ref,
    fakes.show_evidence_fake,
)
count_evidence = register(
    "count_evidence(Tensor(a!) seen, Tensor(b!) distinct, Tensor(c!) trials, Tensor(d!) score, Tensor(e!) standing, "
    "Tensor evidence, Tensor first, Tensor? level, Tensor values, float mean, float variance, float third) -> ()",
    count_evidence_ref,
    lambda *args: None,
)
for _reference in (score_tokens_ref, show_evidence_ref, count_evidence_ref):
    # a few tokens at a time: PyTorch's own operations will do on a GPU, where they read nothing back
    if not has_kernel(_name := _reference.__name__.removesuffix("_ref"), "cuda"):
        library.impl(_name, _reference, "CUDA")

# ---- what other systems draw from torch's CPU generator; seeds int64 [N], of which the low 32 bits count ------------
# permutation_green: torch.randperm(vocab_size)[:count] of each seed as a set of bits int32 [N, ceil(V / 32)], token t =
#   bit t % 32 of word t // 32. For positions at which many tokens are asked about (lefthash at generation), and for
#   sets kept between calls: sets[row, t >> 5] >> (t & 31) & 1. Rows that are not wanted (bool [N]) cost nothing and get
#   an empty set
# permutation_contains: whether tokens[i] is in the list of seeds[i], bool [N]; tokens outside [0, V) are in none.
#   Equal seeds share their work and no list is written down, so it is the way to score a text (one pair per token:
#   seed from the context, the token itself; lefthash and selfhash alike) and to test the 40 candidates of selfhash,
#   each of which has its own seed. V = 49152, gamma = 0.25: about 8 us for a seed with one token, 0.5 for each more.
#   Lists of the last G entries: not in the first V - G
# generator_words: number indices[i] of each seed's generator, int64 [N]; torch.rand(n)[t] = (word t & 0xFFFFFF) / 2^24
permutation_green = register(
    "permutation_green(Tensor seeds, int vocab_size, int count, Tensor? wanted=None) -> Tensor", permutation_green_ref,
    lambda seeds, size, *rest: seeds.new_empty((seeds.shape[0], (size + 31) // 32), dtype=torch.int32),
)  # fmt: skip
permutation_contains = register(
    "permutation_contains(Tensor seeds, Tensor tokens, int vocab_size, int count) -> Tensor", permutation_contains_ref,
    lambda seeds, tokens, vocab_size, count: seeds.new_empty(seeds.shape, dtype=torch.bool),
)  # fmt: skip
generator_words = register(
    "generator_words(Tensor seeds, Tensor indices) -> Tensor", generator_words_ref,
    lambda seeds, indices: indices.new_empty(indices.shape),
)  # fmt: skip

# small_linear: x [M, K] times weight [O, K] transposed, plus bias; float32 sums. Made for the few rows of a step; a row
# has the same bits however many there are. On a CPU float32 x may meet a weight of 16 bits, with the same bits
# as that in float32
small_linear = register(
    "small_linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", small_linear_ref,
    lambda x, weight, bias=None: x.new_empty((x.shape[0], weight.shape[0])), triton="small_linear",
)  # fmt: skip

# packed_linear: the same of a weight of 4 or 8 bits as a GPU reads it, uint8, int8 or float8 [O, bytes]; unpack_weight:
# its numbers [O, size]. On a CPU for comparison only: those of a CPU come next
packed_linear = register(
    "packed_linear(Tensor x, Tensor packed, Tensor? bias=None) -> Tensor", packed_linear_ref,
    lambda x, packed, bias=None: x.new_empty((x.shape[0], packed.shape[0])), triton="small_linear",
)  # fmt: skip
unpack_weight = register(
    "unpack_weight(Tensor packed, int size, ScalarType dtype) -> Tensor", unpack_weight_ref,
    lambda packed, size, dtype: packed.new_empty((packed.shape[0], size), dtype=dtype), triton="packed_weights",
)  # fmt: skip

# weights in the 4-bit and 8-bit blocks of .gguf files; layout and arithmetic: csrc/blocks.h, csrc/cpu/quantized.h
# pack_blocks: uint8 [O, bytes of a row] of ggml's type `type` -> uint8 [N], what products read, or into `out`; `fast`
#   rounds the rows that it is multiplied by to 8 bits
# unpack_rows: rows of it dequantized, float32 [len(rows), K], as the gguf package does, bit for bit
# quantized_linear: float32 x [M, K] times it transposed, plus bias; a row has the same bits whatever rows are beside it
pack_blocks = register(
    "pack_blocks(Tensor blocks, int type, bool fast=False) -> Tensor", None,
    lambda blocks, type, fast=False: blocks.new_empty((packed_bytes(blocks.shape[0], blocks.shape[1], type),)),
)  # fmt: skip
pack_blocks_into = register(
    "pack_blocks_into(Tensor blocks, int type, bool fast, Tensor(a!) out) -> ()", None,
    lambda blocks, type, fast, out: None,
)  # fmt: skip
unpack_rows = register(
    "unpack_rows(Tensor packed, Tensor rows, int size) -> Tensor", None,
    lambda packed, rows, size: packed.new_empty((rows.shape[0], size), dtype=torch.float32),
)  # fmt: skip
quantized_linear = register(
    "quantized_linear(Tensor x, Tensor packed, int outputs, Tensor? bias=None) -> Tensor", None,
    lambda x, packed, outputs, bias=None: x.new_empty((x.shape[0], outputs)),
)  # fmt: skip

# decoder_layer: a whole transformer layer of a step; writes the candidates' keys and values to scratch. On a CPU for
# comparison: there a layer is a stack of one
decoder_layer = register(
    "decoder_layer(Tensor hidden, Tensor cos, Tensor sin, Tensor k_cache, Tensor v_cache, Tensor(a!) k_scratch, "
    "Tensor(b!) v_scratch, int slot, Tensor lengths, Tensor[] weights, Tensor?[] biases, float eps, float scale, "
    "int? window=None, Tensor? rows=None, str family='llama', float? softcap=None) -> Tensor",
    decoder_layer_ref, lambda hidden, *args, **kwargs: hidden.new_empty(hidden.shape), triton="decoder_layer",
)  # fmt: skip

# rms_norm: rows over their root mean square, times weights and an offset. On a CPU for comparison
rms_norm = register(
    "rms_norm(Tensor x, Tensor weight, float eps, float offset=0.) -> Tensor", rms_norm_ref,
    lambda x, *args, **kwargs: x.new_empty(x.shape), triton="rms_norm",
)  # fmt: skip

# decoder_stack: all layers in one call, of candidates or, with places, of tokens of prompts or drafts, which join the
# store. CPU only
decoder_stack = register(
    "decoder_stack(Tensor hidden, Tensor cos, Tensor sin, Tensor(a!) store, Tensor(b!) scratch, int slot, "
    "Tensor lengths, Tensor[] weights, Tensor?[] biases, float eps, float scale, int[] windows, Tensor? rows=None, "
    "Tensor? places=None, str family='llama', float? softcap=None, int[] rotations=[], "
    "float multiplier=1.) -> Tensor",
    decoder_stack_ref,
    lambda hidden, *args, **kwargs: hidden.new_empty(hidden.shape),
)


@dataclass(frozen=True)
class Ops:
    """One implementation of the ops that decoding uses."""

    topk_softmax: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]
    sibling_attention: Callable[..., torch.Tensor]
    sibling_attention_packed: Callable[..., torch.Tensor]
    commit_kv: Callable[..., None]
    commit_step: Callable[..., None]
    select_candidate: Callable[..., torch.Tensor]
    evaluator_step: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    native: bool = True  # use the ops whose reference is a watermark's or sampler's own PyTorch code


def dispatched() -> Ops:
    """Return the ops as torch dispatches them by device."""
    return Ops(
        topk_softmax, sibling_attention, sibling_attention_packed, commit_kv, commit_step,
        select_candidate, evaluator_step,
    )  # fmt: skip


def references() -> Ops:
    """Return plain PyTorch ops for any device: `backend="reference"`."""
    return Ops(
        topk_softmax_ref, sibling_attention_ref, sibling_attention_packed_ref, commit_kv_ref, commit_step_ref,
        select_candidate_ref, evaluator_step_ref, native=False,
    )  # fmt: skip


def of_backend(backend: str | None) -> Ops:
    """Return the ops of `backend`, see `caw.generate`; ValueError for another."""
    if backend not in (None, "reference"):
        raise ValueError(f"backend must be None or 'reference', got {shown(backend)}; leave it out")
    return dispatched() if backend is None else references()


def missing_extension() -> str:
    """Return why the compiled extension is not in use; empty if it is."""
    return _ext.WHY_MISSING

// Hands the CPU kernels to torch. Schemas are defined in caw/ops.py, which also works without this library.

#include "ops.h"
#include "schemas.h"

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("topk_softmax", TORCH_BOX(&caw::topk_softmax));
  m.impl("sibling_attention", TORCH_BOX(&caw::sibling_attention));
  m.impl("sibling_attention_packed", TORCH_BOX(&caw::sibling_attention_packed));
  m.impl("prefix_attention", TORCH_BOX(&caw::prefix_attention));
  m.impl("commit_kv", TORCH_BOX(&caw::commit_kv));
  m.impl("evaluate_capacity", TORCH_BOX(&caw::evaluate_capacity));
  m.impl("select_candidate", TORCH_BOX(&caw::select_candidate));
  m.impl("evaluator_step", TORCH_BOX(&caw::evaluator_step));
  m.impl("enumerate_candidates", TORCH_BOX(&caw::enumerate_candidates));
  m.impl("score_tokens", TORCH_BOX(&caw::score_tokens));
  m.impl("show_evidence", TORCH_BOX(&caw::show_evidence));
  m.impl("count_evidence", TORCH_BOX(&caw::count_evidence));
  m.impl("sampling_noise", TORCH_BOX(&caw::sampling_noise));
  m.impl("penalise_logits", TORCH_BOX(&caw::penalise_logits));
  m.impl("warp_logits", TORCH_BOX(&caw::warp_logits));
  m.impl("draw_scores", TORCH_BOX(&caw::draw_scores));
  m.impl("tournament", TORCH_BOX(&caw::tournament));
  m.impl("race_winner", TORCH_BOX(&caw::race_winner));
  m.impl("permutation_green", TORCH_BOX(&caw::permutation_green));
  m.impl("permutation_contains", TORCH_BOX(&caw::permutation_contains));
  m.impl("generator_words", TORCH_BOX(&caw::generator_words));
  m.impl("small_linear", TORCH_BOX(&caw::small_linear));
  m.impl("pack_blocks", TORCH_BOX(&caw::pack_blocks));
  m.impl("pack_blocks_into", TORCH_BOX(&caw::pack_blocks_into));
  m.impl("unpack_rows", TORCH_BOX(&caw::unpack_rows));
  m.impl("quantized_linear", TORCH_BOX(&caw::quantized_linear));
  m.impl("decoder_stack", TORCH_BOX(&caw::decoder_stack));
}

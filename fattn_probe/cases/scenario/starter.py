"""The file that `fattn-probe scenario new` writes."""

STARTER = """\
# One FLASH_ATTN_EXT op. Every key is described in docs/reference/scenario.md; the keys in comments show their defaults.
version: 1
about: what this scenario is there to show, in one line

# Sizes: Q is {hsk, n_q, n_head, n_seq}, K {hsk, n_kv, n_head_kv, n_seq}, V {hsv, n_kv, n_head_kv, n_seq}.
hsk: 128
# hsv: 128            # default: hsk
n_head: 8
n_head_kv: 2          # default: n_head; fewer is grouped-query attention
n_q: 16
n_kv: 512
# n_seq: 1

# Types of the KV cache: f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 iq4_nl.
# type_K: f16
# type_V: f16         # default: type_K

# Parameters of the op.
# scale: 0.08838835   # default: 1/sqrt(hsk)
# max_bias: 0         # > 0: ALiBi
# logit_softcap: 0
# prec: f32           # or default
# n_kv_max: 0
# sinks: false

# none causal sliding_window sequences blocks masked_tiles masked_rows random alibi sparse, or a sum of several.
mask: {kind: causal}

# uniform normal constant fa3_outliers large_logits far_below_zero extreme.
# data:
#   V: {kind: normal, scale: 1, mean: 0}
# seed: 0

# Where the tensors lie: contiguous, or a view of something larger, as K and V of a cache are.
# layout:
#   K: {kind: view, permute: [0, 2, 1, 3], rows: 1024}
#   V: {kind: view, permute: [0, 2, 1, 3], rows: 1024}

# tolerance: {nmse: 5e-4}
# device: sim:h200

# One case for each combination, and those listed in include.
# matrix:
#   n_kv: [256, 512]
#   data.V.mean: [0, 1]
#   include:
#     - {n_q: 1, n_kv: 1024}
"""

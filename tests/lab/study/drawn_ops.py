"""Ops to study, drawn by hypothesis: any shape, mask, softcap, ALiBi and sinks, tiles of any size."""

import numpy as np
from hypothesis import strategies as st

from fattn_probe.cases.op import Params
from fattn_probe.lab.study.command import StudyTiling, Subject
from fattn_probe.lab.study.problem import OpArrays
from fattn_probe.lab.study.stream_k import divide


def made_op(
    seed,
    *,
    n_seq=1,
    n_head_kv=1,
    group=1,
    n_q=5,
    n_kv=12,
    hsk=8,
    hsv=8,
    mask="none",
    params=Params(0.3),  # noqa: B008
    sinks=False,
    spread=1.0,
):
    random = np.random.default_rng(seed)
    n_head = n_head_kv * group
    Q = spread * random.normal(size=(n_seq, n_head, n_q, hsk))
    K = random.normal(size=(n_seq, n_head_kv, n_kv, hsk))
    V = random.normal(size=(n_seq, n_head_kv, n_kv, hsv))
    logits = random.normal(size=n_head) if sinks else None
    return OpArrays(Q, K, V, made_mask(random, mask, (n_seq, n_head, n_q, n_kv)), params, logits)


def made_mask(random, kind, shape):
    n_seq, n_head, n_q, n_kv = shape
    match kind:
        case "causal":
            hidden = np.arange(n_kv) > np.arange(n_q)[:, None] + n_kv - n_q
            return np.where(hidden, -np.inf, 0.0)[None, None]
        case "random":  # some rows, and with luck tiles, hidden altogether; a row of padding
            hidden = random.random((n_seq, 1, n_q + 1, n_kv)) < random.random((n_seq, 1, n_q + 1, 1)) * 1.5
            return np.where(hidden, -np.inf, random.normal(size=hidden.shape))
        case "heads":
            hidden = random.random((1, n_head, n_q, n_kv)) < 0.5
            return np.where(hidden, -np.inf, random.normal(size=hidden.shape))
        case "all":
            return np.full((1, 1, n_q, n_kv), -np.inf)
    return None


def subject_of(op, *, head=0, sequence=0, B_r=4, B_c=3, fa1=(2, 5), splits=3, blocks=7):
    return Subject(op, sequence, head, StudyTiling(B_r, B_c, fa1, splits), divide(op.shape, B_r, B_c, blocks))


ops = st.builds(
    made_op,
    st.integers(0, 2**32),
    n_seq=st.integers(1, 2),
    n_head_kv=st.integers(1, 3),
    group=st.integers(1, 9),
    n_q=st.integers(1, 17),
    n_kv=st.integers(1, 40),
    hsk=st.integers(1, 12),
    hsv=st.integers(1, 12),
    mask=st.sampled_from(["none", "causal", "random", "heads", "all"]),
    params=st.builds(
        Params, st.sampled_from([0.05, 0.3, 2.0]), st.sampled_from([0.0, 8.0]), st.sampled_from([0.0, 5.0])
    ),
    sinks=st.booleans(),
    spread=st.sampled_from([0.01, 1.0, 5.0]),
)
sizes = st.integers(1, 20)


@st.composite
def subjects(draw):
    op = draw(ops)
    return subject_of(
        op,
        head=draw(st.integers(0, op.shape.n_head - 1)),
        sequence=draw(st.integers(0, op.shape.n_seq - 1)),
        B_r=draw(sizes),
        B_c=draw(sizes),
        fa1=(draw(sizes), draw(sizes)),
        splits=draw(st.integers(1, 6)),
        blocks=draw(st.integers(1, 60)),
    )

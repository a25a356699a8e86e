"""Small attention problems, their exact answer, and how large the error of f16 tensor cores is."""

import importlib.util
from dataclasses import dataclass

import numpy as np
import pytest

from fattn_probe.cases.op import Params
from fattn_probe.lab.kernels.extras import Arrays
from fattn_probe.verdict.truth.reference.attention import attention_and_lse

NEGATIVE_INFINITY = np.float16(-np.inf)


def needs(*packages, extra):
    """A mark: skip where a package is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{missing} not installed: pip install 'fattn-probe[{extra}]'")


@dataclass(frozen=True)
class AttentionCase:
    """q, k, v and mask as the kernels take them; `visible` is the mask with -inf where `causal` hides a KV row."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    mask: np.ndarray | None
    scale: float
    causal: bool

    @property
    def arrays(self):
        """The case as the kernels take it."""
        return Arrays(self.q, self.k, self.v, self.scale, self.causal, self.mask)

    @property
    def visible(self):
        n_q, n_kv = self.q.shape[2], self.k.shape[2]
        mask = np.zeros((n_q, n_kv)) if self.mask is None else self.mask.astype(np.float64)
        hidden = np.arange(n_kv) > np.arange(n_q)[:, None] + n_kv - n_q
        return np.where(hidden & self.causal, -np.inf, mask)

    def exact(self):
        """Output (n_seq, n_head, n_q, hsv) and log-sum-exp (n_seq, n_head, n_q) in float64."""
        o, lse = attention_and_lse(self.q, self.k, self.v, self.visible[None, None], params=Params(self.scale))
        return o.transpose(0, 2, 1, 3), lse.transpose(0, 2, 1)

    def rounded(self):
        """The output if nothing is rounded but P, to f16, relative to the row's largest logit."""
        group = self.q.shape[1] // self.k.shape[1]
        q, k, v = (array.astype(np.float64) for array in (self.q, self.k, self.v))
        S = q @ k.repeat(group, 1).swapaxes(2, 3) * self.scale + self.visible
        m = S.max(-1, keepdims=True)
        P = np.exp(S - np.where(np.isneginf(m), 0.0, m))
        l = P.sum(-1, keepdims=True)  # noqa: E741
        return P.astype(np.float16).astype(np.float64) @ v.repeat(group, 1) / np.where(l == 0, 1, l)


def case(n_seq, n_head, n_head_kv, n_q, n_kv, hsk, hsv, *, causal=False, masked=False):
    """A random case; with `masked` a third is hidden, and all of the first row."""
    random = np.random.default_rng(8)
    q = random.standard_normal((n_seq, n_head, n_q, hsk)).astype(np.float16)
    k = random.standard_normal((n_seq, n_head_kv, n_kv, hsk)).astype(np.float16)
    v = random.standard_normal((n_seq, n_head_kv, n_kv, hsv)).astype(np.float16)
    mask = None
    if masked:
        mask = random.standard_normal((n_q, n_kv)).astype(np.float16)
        mask[random.random((n_q, n_kv)) < 1 / 3] = NEGATIVE_INFINITY
        mask[0] = NEGATIVE_INFINITY
    return AttentionCase(q, k, v, mask, hsk**-0.5, causal)


def rms(error):
    return float(np.sqrt(np.mean(np.square(error))))


def assert_as_rounded(problem, o, lse):
    """The output's error is that of P in f16, no more and no less, and the log-sum-exp's is that of f32."""
    exact, exact_lse = problem.exact()
    assert 0.7 < rms(o - exact) / rms(problem.rounded() - exact) < 1.4
    assert np.array_equal(np.isneginf(lse), np.isneginf(exact_lse))
    sees = np.isfinite(exact_lse)
    assert np.abs(lse[sees] - exact_lse[sees]).max() < 4e-6
    assert not o[~sees].any()

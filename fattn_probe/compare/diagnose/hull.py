"""Whether a point is outside the convex hull of others, by a plane between them."""

import numpy as np

from fattn_probe.arrays import F64

STEPS = 400
TIGHT = 1e-10
SUM = 4.0
"""Weight of the equation that the weights add up to one."""


def is_outside(points: F64, point: F64, slack: F64) -> bool:
    """Whether a plane has `point` (n,) on one side and all `points` (number, n) on the other.

    Each coordinate may be off by `slack` (n,). The plane is found by non-negative least squares, and then checked.
    """
    for along in (*_axes(points, point), point - _nearest(points, point)):
        room = float(np.abs(along) @ slack)
        if float(along @ point) > float((points @ along).max()) + room:
            return True
    return False


def _axes(points: F64, point: F64) -> list[F64]:
    """The direction of the coordinate that is furthest outside."""
    over, under = point - points.max(axis=0), points.min(axis=0) - point
    unit = np.eye(len(point))
    return [unit[over.argmax()], -unit[under.argmax()]]


def _nearest(points: F64, point: F64) -> F64:
    """Approximate the nearest point of the hull (active set method, Lawson and Hanson 1974)."""
    size = SUM * (float(np.abs(points).max()) or 1.0)
    A = np.vstack([points.T, np.full(len(points), size)])
    b = np.append(point, size)
    weights, active = np.zeros(len(points)), np.zeros(len(points), np.bool_)
    for _ in range(STEPS):
        gain = np.where(active, -np.inf, A.T @ (b - A @ weights))
        best = int(gain.argmax())
        if gain[best] <= TIGHT * size**2 or active.sum() >= len(b):
            break
        active[best] = True
        while True:
            fitted = np.zeros(len(points))
            fitted[active] = np.linalg.lstsq(A[:, active], b, rcond=None)[0]
            negative = active & (fitted <= 0)
            if not negative.any():
                break
            drop = weights[negative] / (weights[negative] - fitted[negative] + 1e-300)
            weights = weights + float(drop.min()) * (fitted - weights)
            active &= weights > TIGHT
            weights[~active] = 0.0
        weights = fitted
    return np.asarray(weights @ points / (float(weights.sum()) or 1.0))

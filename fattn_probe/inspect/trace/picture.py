"""A trace as pictures: P along the KV rows, and VKQ's distance from exact arithmetic after each step."""

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from fattn_probe.arrays import F64, Bytes
from fattn_probe.inspect.trace.reference import Deviation, JudgedTrace, TracedTile
from fattn_probe.inspect.trace.show import drift, headline, words_of, words_of_tile

WIDTH, LEFT, ROW, STRIP = 960, 124, 12, 3
LABEL = 48.0  # between labelled KV rows
STOPS = np.array([(247, 251, 255), (158, 202, 225), (49, 130, 189), (8, 48, 107)], np.float64)
"""From zero to the largest value; light to dark blue is readable without colour vision."""
NOT_FINITE = (209, 36, 47)
STYLE = """
.trc{color-scheme:light dark;max-width:100%;height:auto;font:11px ui-sans-serif,system-ui,sans-serif}
.trc{--ink:#1b1f24;--soft:#59636e;--bad:#d1242f}
@media(prefers-color-scheme:dark){.trc{--ink:#e6edf3;--soft:#9198a1;--bad:#ff6b6b}}
.trc text{fill:var(--soft)}.trc image{image-rendering:pixelated}
.trc .tick{stroke:var(--soft);stroke-opacity:.5}.trc .bad{fill:none;stroke:var(--bad);stroke-width:2}
"""


def trace_picture(trace: JudgedTrace) -> str:
    """HTML for a page: the columns of each tile, and two heat maps as SVG that scroll beside their labels."""
    deviation = trace.deviation
    said = f"first deviation: {words_of(deviation)}" if deviation else "no value deviates from exact arithmetic"
    tiles = [
        f"<h3>{escape(words_of_tile(tile))}</h3>"
        f"{_P(tile, deviation if at == _tile_of(deviation) else None)}{_VKQ(tile)}"
        for at, tile in enumerate(trace.tiles)
        if tile.exists.any() and tile.steps
    ]
    return f"<style>{STYLE}</style><p>{escape(headline(trace))}: {escape(said)}</p>{''.join(tiles)}"


def _tile_of(deviation: Deviation | None) -> int:
    return -1 if deviation is None else deviation.tile


def _P(tile: TracedTile, deviation: Deviation | None) -> str:
    """P of all steps side by side, one row of pixels per column, with the first deviation marked."""
    matrix = np.concatenate([step.P for step in tile.steps], axis=1)[tile.exists]
    rows = [int(row) for step in tile.steps for row in step.kv_rows]
    height, scale = ROW * len(matrix), (WIDTH - LEFT) / max(1, matrix.shape[1])
    body = [_image(matrix, height), *_steps(tile, height, scale)]
    if deviation is not None and deviation.kv_row in rows:
        columns = list(zip(tile.query[tile.exists], tile.head[tile.exists], strict=True))
        y = ROW * columns.index((deviation.query, deviation.head))
        x = LEFT + rows.index(deviation.kv_row) * scale
        body.append(f'<rect class="bad" x="{x - 3:.1f}" y="{y - 2}" width="{scale + 6:.1f}" height="{ROW + 4}"/>')
    title = f"P of each query and head along the KV rows: white is 0, dark is {_largest(matrix):.3g}."
    labels = [*_columns(tile), _label(height + 16, "KV row")]
    return _figure(title, labels, body, height + 24)


def _steps(tile: TracedTile, y: float, scale: float) -> Iterator[str]:
    """Ticks where steps begin; some are labelled with their first KV row."""
    start, labelled = 0, 0.0
    for step in tile.steps:
        x = LEFT + start * scale
        yield f'<line class="tick" x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + 5}"/>'
        if x - labelled >= LABEL:
            yield f'<text x="{x:.1f}" y="{y + 16}">{step.kv_rows[0]}</text>'
            labelled = x
        start += len(step.kv_rows)


def _columns(tile: TracedTile) -> Iterator[str]:
    for at, (query, head) in enumerate(zip(tile.query[tile.exists], tile.head[tile.exists], strict=True)):
        yield _label(ROW * at + 10, f"query {query}, head {head}")


def _VKQ(tile: TracedTile) -> str:
    """|VKQ - exact| after each step, along d; one scale for all steps."""
    with np.errstate(invalid="ignore"):
        errors = [np.abs(step.VKQ - step.exact_VKQ)[tile.exists] for step in tile.steps]
    height = STRIP * len(errors[0])
    body, labels = [_image(np.concatenate(errors), height * len(errors))], []
    for at, step in enumerate(tile.steps):
        y = at * height
        body.append(f'<line class="tick" x1="{LEFT - 4}" y1="{y}" x2="{WIDTH}" y2="{y}"/>')
        if height >= ROW or at % -(-ROW // height) == 0:
            labels.append(_label(y + 10, f"kb0 {step.kb0}: {drift(step, tile.exists):.1g}"))
    title = (
        "Distance of VKQ from exact arithmetic after each KV step, along d: white is 0, dark is"
        f" {_largest(np.concatenate(errors)):.3g}. Left: the step and its largest distance."
    )
    return _figure(title, labels, body, max(height * len(errors) + 6, ROW))


def _figure(title: str, labels: Sequence[str], body: Sequence[str], height: float) -> str:
    """Fixed labels and a picture that scrolls beside them, by the page's styles."""
    pictures = _svg(labels, 0, LEFT - 4, height) + _svg(body, LEFT - 4, WIDTH - LEFT + 4, height)
    return (
        f'<figure class="map"><p class="scrolls">Scroll the picture sideways →</p>'
        f'<div class="pinned" tabindex="0" role="region" aria-label="trace">{pictures}</div>'
        f"<figcaption>{escape(title)}</figcaption></figure>"
    )


def _svg(body: Sequence[str], x: float, width: float, height: float) -> str:
    size = f'width="{width:.0f}" height="{height + 3:.0f}" viewBox="{x:.0f} -3 {width:.0f} {height + 3:.0f}"'
    return f'<svg class="trc" {size} role="img">{"".join(body)}</svg>'


def _label(y: float, words: str) -> str:
    return f'<text x="{LEFT - 8}" y="{y:.0f}" text-anchor="end">{escape(words)}</text>'


def _largest(matrix: F64) -> float:
    return float(matrix[np.isfinite(matrix)].max(initial=0.0))


def _image(matrix: F64, height: float) -> str:
    data = base64.b64encode(png(pixels(matrix))).decode()
    return (
        f'<image x="{LEFT}" y="0" width="{WIDTH - LEFT}" height="{height}" preserveAspectRatio="none"'
        f' href="data:image/png;base64,{data}"/>'
    )


def pixels(matrix: F64) -> Bytes:
    """RGB (rows, columns, 3), scaled from 0 to the largest finite value; NaN and infinity are red."""
    finite = np.isfinite(matrix)
    share = np.where(finite, matrix, 0.0).clip(0.0) / (_largest(matrix) or 1.0) * (len(STOPS) - 1)
    below = np.minimum(share.astype(int), len(STOPS) - 2)
    colour = STOPS[below] + (share - below)[..., None] * (STOPS[below + 1] - STOPS[below])
    return np.where(finite[..., None], colour, np.array(NOT_FINITE)).round().astype(np.uint8)


def png(image: Bytes) -> bytes:
    """The bytes of a PNG file, from an RGB image (rows, columns, 3)."""
    height, width, _ = image.shape
    lines = b"".join(b"\0" + image[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

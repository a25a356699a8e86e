"""What the rewriter makes of a text without known PTX, on one line."""

import re

from fattn_probe.llama.build.rewrite import Style, rewrite


def squeezed(text):
    return re.sub(r"\s+", " ", text)


def one_line(text, name="file.cu", style=Style()):  # noqa: B008
    return squeezed(rewrite(text, name, frozenset(), style).text)


def device(body):
    """A body as that of a device function."""
    return one_line(f"static __device__ void f() {{ {body} }}")

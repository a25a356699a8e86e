"""The command line of `source`."""

from typing import Annotated

import typer

from fattn_probe.base.console import NOTES, show
from fattn_probe.cli import flags
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.llama.source import command as sources

source_app = typer.Typer(help="Fetch and describe llama.cpp trees.", no_args_is_help=True)


@source_app.command("list")
def source_list(as_json: flags.Json = False) -> None:
    """List the sources that are pinned or cached."""
    rows = sources.list_sources()
    show(rows, lambda: sources.render_list(rows), as_json)


@source_app.command("get")
def source_get(
    spec: Annotated[str, typer.Argument()] = DEFAULT_SOURCE,
    allow_unverified: Annotated[
        bool, typer.Option("--allow-unverified", help="Accept a release for which the package index has no sha256.")
    ] = False,
    as_json: flags.Json = False,
) -> None:
    """Fetch a source into the cache."""
    with sources.download_bar(NOTES) as progress:
        tree = resolve(spec, progress, unverified=allow_unverified)
    found = {name: str(getattr(tree, name)) for name in ("spec", "root", "build_number", "digest")}
    text = f"{tree.spec}: llama.cpp build {tree.build_number}, era {tree.features.era}\n{tree.root}"
    show(found | {"era": tree.features.era}, lambda: text, as_json)


@source_app.command("show")
def source_show(spec: Annotated[str, typer.Argument()] = DEFAULT_SOURCE, as_json: flags.Json = False) -> None:
    """Show a source's llama.cpp build, features and flash-attention kernels."""
    with sources.download_bar(NOTES) as progress:
        details = sources.details_of(resolve(spec, progress))
    show(details, lambda: sources.render_details(details), as_json)

"""`python -m fattn_probe`, and the program `fattn-probe`."""

import gc

from fattn_probe.base import signals


def main() -> None:
    """Run the command line; Ctrl-C ends it at once until its command begins, as there is nothing to clean up yet."""
    signals.end_at_once()
    gc.disable()  # imports leave nothing to collect, and the collector takes a seventh of their time
    from fattn_probe import cli  # typer and rich: a third of a second

    cli.main()


if __name__ == "__main__":
    main()

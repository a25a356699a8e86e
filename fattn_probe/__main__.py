"""`python -m fattn_probe`."""

from fattn_probe.cli import main

main()

"""Reproductions: what a maintainer of llama.cpp needs to see a failure, without fattn-probe."""

"""Reproductions: everything that a llama.cpp maintainer needs to see a failure without fattn-probe."""

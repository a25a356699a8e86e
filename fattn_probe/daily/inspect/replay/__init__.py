"""A page that steps through a run: each block's steps in order, and the numbers of some output rows."""

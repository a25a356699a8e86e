"""A page that steps through a run: each block's steps in order, and the values of some output rows."""

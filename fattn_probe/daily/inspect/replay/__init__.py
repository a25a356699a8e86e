"""A run step by step, as a page: what each block does in order, and the numbers of some rows."""

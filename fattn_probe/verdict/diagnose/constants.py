"""The constants of the diagnosis, each with a test that fails if it is changed by a factor of two or more.

`unpinned`: no such test is known.
"""

WORK = 1 << 27  # test_a_search_has_a_limit_of_work
EXPLAINED = 0.9999  # unpinned
LEAST = 0.9  # test_the_first_cause_is_the_true_one
UNLIKELY = 30.0  # test_the_fault_is_named
ROUNDING = 3.0  # test_the_first_cause_is_the_true_one
AGREED = 0.5  # test_the_first_cause_is_the_true_one
NEAR = 32  # unpinned
LEFT = 0.1  # test_the_first_cause_is_the_true_one
LEFT_OF_MANY = 0.02  # unpinned
WHOLE = 0.1  # unpinned
SEARCHED = 10.0  # test_a_part_of_the_op_that_is_ignored
ALIKE = 0.02  # test_the_first_cause_is_the_true_one
NAMED = 0.003  # unpinned
FINE = 0.004  # unpinned
NEAR_ONE = 0.08  # unpinned
SIGMAS = 4.0  # test_the_first_cause_is_the_true_one
BETTER = 1.5  # test_the_first_cause_is_the_true_one
F16_ULP = 2**-10  # unpinned
MOST = 0.75  # test_the_first_cause_is_the_true_one
SAME = 0.03  # test_a_step_that_is_not_rescaled_has_the_wrong_weight
UNKNOWNS = 0.5  # test_the_first_cause_is_the_true_one
FEW = 24  # unpinned
KEPT = 6  # unpinned
LEAST_BITS = 12.0  # unpinned
MORE = 1.25  # unpinned
WORTH = 0.15  # unpinned
ROWS_TRIED = 8  # test_place_tile_block_and_step_of_the_worst
WORST = 5  # test_place_tile_block_and_step_of_the_worst
FRESH = 0xFFFFE000  # test_the_bits_of_a_nan_tell_where_it_comes_from
INVALID = 0xFFC00000  # test_the_bits_of_a_nan_tell_where_it_comes_from
OPERAND = 0x7FC00000  # unpinned

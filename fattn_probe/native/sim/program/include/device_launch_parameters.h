// threadIdx and the others: prelude.h defines them.

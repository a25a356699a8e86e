// threadIdx, blockIdx, blockDim and gridDim: prelude.h defines these.

// The variables that a debugger reads and sets by name. They are in a separate file with few headers, because a
// debugger reads all debug information of the file that defines a variable.
#include "focus.h"
#include "warp.h"

namespace simt {

volatile Focus focus;

SIMT_THREAD_LOCAL Fiber *self = nullptr;
SIMT_THREAD_LOCAL uint3 blockIdx;
SIMT_THREAD_LOCAL dim3 blockDim;
SIMT_THREAD_LOCAL dim3 gridDim;

} // namespace simt

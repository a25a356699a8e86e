#include "environment.h"

const simt::Environment &simt::environment() {
    static const Environment once;
    return once;
}

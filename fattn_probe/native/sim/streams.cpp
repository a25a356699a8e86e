#include "streams.h"

namespace simt {

Handles<Event> &events() {
    static Handles<Event> once(0);
    return once;
}
Handles<Stream> &streams() {
    static Handles<Stream> once(stream_per_thread + 1);
    return once;
}

bool is_stream(cudaStream_t stream) {
    return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread ||
           streams().find(stream) != nullptr;
}

Stream stream_of(cudaStream_t stream) {
    if (stream == nullptr || stream == cudaStreamLegacy) {
        return {legacy_stream, true};
    }
    return stream == cudaStreamPerThread ? Stream{stream_per_thread, true} : *reinterpret_cast<const Stream *>(stream);
}

} // namespace simt

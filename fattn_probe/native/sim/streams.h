// The streams and events of a program: a handle that was never created, or was destroyed, is refused as in CUDA.
// Everything is synchronous, so their order matters only to the checker (check_order.h).
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

namespace simt {

// `number` is never used again.
struct Event {
    uint32_t number;
    bool timed = true;
    bool recorded = false;
    std::chrono::steady_clock::time_point time{};
};
// `blocking`: this stream and the legacy default stream wait for each other.
struct Stream {
    uint32_t number;
    bool blocking;
};
constexpr uint32_t legacy_stream = 0, stream_per_thread = 1;

template <class T> class Handles {
  public:
    explicit Handles(uint32_t first) : next_(first) {}

    T *make(T value) {
        const std::lock_guard<std::mutex> lock(mutex_);
        value.number = next_++;
        return *live_.insert(new T(value)).first;
    }
    // The object of a handle; nullptr if there is none.
    T *find(const void *handle) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = live_.find(static_cast<T *>(const_cast<void *>(handle)));
        return found == live_.end() ? nullptr : *found;
    }
    bool destroy(const void *handle) {
        const std::unique_ptr<T> object(find(handle));
        const std::lock_guard<std::mutex> lock(mutex_);
        return object != nullptr && live_.erase(object.get()) != 0;
    }

  private:
    std::mutex mutex_;
    std::set<T *> live_;
    uint32_t next_;
};

Handles<Event> &events();
Handles<Stream> &streams();

// Whether a stream exists; CUDA's own three streams always exist.
bool is_stream(cudaStream_t stream);
// A stream that exists.
Stream stream_of(cudaStream_t stream);

} // namespace simt

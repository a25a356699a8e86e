// The times of runs of the graph, from GPU events if the executable supports them, otherwise from the wall clock.
#pragma once

#include <chrono>
#include <vector>

// Defined in native/cuda/record_launches.cpp, which only the cuda engine links: weak, and null elsewhere.
extern "C" {
__attribute__((weak)) void fattn_probe_gpu_timer_start();
__attribute__((weak)) double fattn_probe_gpu_timer_stop(); // seconds; negative without GPU work
}

// A series of measurements with the same clock.
class Timer {
  public:
    template <typename Work> void measure(const Work &work) {
        if (fattn_probe_gpu_timer_start != nullptr) {
            fattn_probe_gpu_timer_start();
        }
        const auto start = std::chrono::steady_clock::now();
        work();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        wall_.push_back(taken.count());
        const double gpu = fattn_probe_gpu_timer_stop != nullptr ? fattn_probe_gpu_timer_stop() : -1.0;
        if (gpu >= 0.0) {
            gpu_.push_back(gpu);
        }
    }

    const char *clock() const { return by_events() ? "gpu" : "wall"; }
    const std::vector<double> &seconds() const { return by_events() ? gpu_ : wall_; }

  private:
    bool by_events() const { return gpu_.size() == wall_.size(); }

    std::vector<double> wall_;
    std::vector<double> gpu_;
};

#pragma once
// What AddressSanitizer must be told about the stacks of fibers; nothing without it.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace simt {

#if defined(__SANITIZE_ADDRESS__)

// As long as this exists, another stack is in use.
class OtherStack {
  public:
    OtherStack(const char *stack, size_t bytes) { __sanitizer_start_switch_fiber(&fake_stack_, stack, bytes); }
    ~OtherStack() { __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr); }
    OtherStack(const OtherStack &) = delete;
    OtherStack &operator=(const OtherStack &) = delete;

  private:
    void *fake_stack_ = nullptr;
};

// On a stack that is used for the first time since it was unmarked.
inline void begin_stack() { __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr); }
// The functions on this stack will not be returned to.
inline void leave_stack() { __sanitizer_start_switch_fiber(nullptr, nullptr, 0); }
// Functions that never returned have left the bounds of their arrays marked.
inline void unmark_stack(const char *stack, size_t bytes) { __asan_unpoison_memory_region(stack, bytes); }

#else

class OtherStack {
  public:
    OtherStack(const char *, size_t) {}
};
inline void begin_stack() {}
inline void leave_stack() {}
inline void unmark_stack(const char *, size_t) {}

#endif

} // namespace simt

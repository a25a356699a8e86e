#pragma once
// Informs AddressSanitizer about the stacks of fibers; does nothing without it.

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#endif

namespace simt {

#if defined(__SANITIZE_ADDRESS__)

// While this object exists, another stack is in use.
class OtherStack {
  public:
    OtherStack(const char *stack, size_t bytes) { __sanitizer_start_switch_fiber(&fake_stack_, stack, bytes); }
    ~OtherStack() { __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr); }
    OtherStack(const OtherStack &) = delete;
    OtherStack &operator=(const OtherStack &) = delete;

  private:
    void *fake_stack_ = nullptr;
};

// Called on a stack on its first use since it was unmarked.
inline void begin_stack() { __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr); }
// No function on this stack will be returned to; the host thread's own stack is in use again.
inline void leave_stack() {
    void *start = nullptr;
    size_t bytes = 0;
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &start, &bytes);
        pthread_attr_destroy(&attributes);
    }
    __sanitizer_start_switch_fiber(nullptr, start, bytes);
}
// The running thread has switched stacks without telling AddressSanitizer.
inline void enter_stack(const char *stack, size_t bytes) {
    __sanitizer_start_switch_fiber(nullptr, stack, bytes);
    begin_stack();
}
// Functions that never returned have left the bounds of their arrays marked.
inline void unmark_stack(const char *stack, size_t bytes) { __asan_unpoison_memory_region(stack, bytes); }

#else

class OtherStack {
  public:
    OtherStack(const char *, size_t) {}
};
inline void begin_stack() {}
inline void leave_stack() {}
inline void enter_stack(const char *, size_t) {}
inline void unmark_stack(const char *, size_t) {}

#endif

} // namespace simt

#include "finding.h"

#include "environment.h"
#include "program/printing.h"
#include "worker.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>
#include <mutex>
#include <unistd.h>

// From UndefinedBehaviorSanitizer's library, which has no header; null if it is not linked.
extern "C" __attribute__((weak)) void __ubsan_get_current_report_data(const char **, const char **, const char **,
                                                                      unsigned *, unsigned *, char **);

namespace simt {
namespace {

std::string json_frames(const Stack &stack) {
    std::string frames;
    for (void *address : stack) {
        Dl_info info;
        if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
            continue;
        }
        char text[600];
        snprintf(text, sizeof(text), "%s+0x%zx", info.dli_fname,
                 static_cast<size_t>(static_cast<char *>(address) - static_cast<char *>(info.dli_fbase)));
        frames += (frames.empty() ? "" : ",") + json_string(text);
    }
    return "[" + frames + "]";
}

// A message on an AMD GPU uses HIP's names for functions and errors, which differ from CUDA's only in the prefix.
std::string named_for_gpu(std::string message) {
    for (size_t at = message.find("cuda"); !environment().gfx.empty() && at != std::string::npos;
         at = message.find("cuda", at + 1)) {
        if (std::isupper(static_cast<unsigned char>(message[at + strlen("cuda")])) != 0) {
            message.replace(at, strlen("cuda"), "hip");
        }
    }
    return message;
}

} // namespace

std::string json_string(const std::string &text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            quoted += '\\';
        }
        quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return quoted + "\"";
}

std::string text_of(dim3 numbers, const char *between) {
    return std::to_string(numbers.x) + between + std::to_string(numbers.y) + between + std::to_string(numbers.z);
}

dim3 place_in(dim3 size, uint64_t number) {
    return dim3(number % size.x, number / size.x % size.y, number / size.x / size.y);
}

Stack call_stack() {
    void *addresses[64];
    const int count = backtrace(addresses, 64);
    Stack stack;
    for (int i = 0; i < count; i++) {
        stack.push_back(static_cast<char *>(addresses[i]) - 1); // inside the call, not after it
    }
    return stack;
}

SIMT_THREAD_LOCAL Report report_in_progress;

std::string json_of(const Finding &finding) {
    report_in_progress.finding = &finding;
    std::string text =
        "{\"kind\":" + json_string(finding.kind) + ",\"message\":" + json_string(named_for_gpu(finding.message));
    if (finding.fiber != nullptr) {
        text += ",\"kernel\":" + json_string(worker->launch->kernel.signature) + ",\"block\":[" +
                text_of(blockIdx, ",") + "],\"thread\":[" + text_of(finding.fiber->thread_idx, ",") + "]";
    } else if (*finding.kernel != '\0') {
        text += ",\"kernel\":" + json_string(finding.kernel);
    }
    if (!finding.earlier.empty()) {
        text += ",\"earlier\":" + json_frames(finding.earlier);
    }
    text += ",\"frames\":" + json_frames(finding.stack.empty() ? call_stack() : finding.stack) + "}";
    report_in_progress = {};
    return text;
}

void report(const Finding &finding) {
    if (self == nullptr) {
        end_with(json_of(finding));
    }
    check_pending(); // an earlier race of this thread comes first
    worker->note_fault(finding);
    worker->stop_thread();
}

void end_with(const std::string &json) {
    static std::mutex only_one;
    only_one.lock(); // never unlocked: only the first finding is reported
    flush_prints();
    fflush(stdout);
    FILE *const file = environment().findings.empty() ? stderr : fopen(environment().findings.c_str(), "w");
    if (file != nullptr) {
        fprintf(file, "fattn-probe: finding: %s\n", json.c_str());
        fflush(file);
    }
    _exit(86);
}

void fail(const std::string &message) {
    fprintf(stderr, "fattn-probe: simulator: %s\n", message.c_str());
    fflush(stderr);
    _exit(1);
}

} // namespace simt

// UndefinedBehaviorSanitizer calls this for each of its findings; after a finding in host code, the program continues.
extern "C" void __ubsan_on_report() {
    if (simt::self != nullptr) {
        const char *kind, *message, *file;
        unsigned line, column;
        char *address;
        __ubsan_get_current_report_data(&kind, &message, &file, &line, &column, &address);
        simt::end_with(simt::json_of({"undefined", std::string(message) + " in " + file + ":" + std::to_string(line)}));
    }
}

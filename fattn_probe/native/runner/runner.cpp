// fattn-runner: runs one GGML_OP_FLASH_ATTN_EXT of a case file on one ggml backend and writes the output.
//
// It uses only ggml's public API and compiles against every llama.cpp that has the op and gguf.h, whose types it uses.

#include "backend.h"
#include "batch.h"
#include "case_file.h"
#include "crash.h"
#include "op.h"
#include "options.h"
#include "result_file.h"
#include "selection_file.h"
#include "timer.h"

#include <fstream>

// Defined in a library that counts executed code (native/sim/counters.cpp); null in all others.
extern "C" __attribute__((weak)) void fattn_probe_case_done();

namespace {

void log_warnings(ggml_log_level level, const char *text, void *shown) {
    bool &previous = *static_cast<bool *>(shown);
    if (level != GGML_LOG_LEVEL_CONT) {
        previous = level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR;
    }
    if (previous) {
        std::fputs(text, stderr);
        std::fflush(stderr);
    }
}

// Marks the start of a run of the graph in the launch records.
void mark_run(int index) {
    if (const char *path = std::getenv("FATTN_PROBE_LAUNCHES")) {
        std::ofstream(path, std::ios::app) << "{\"run\":" << index << "}\n";
    }
}

Timer time_runs(Op &op, int warmup, int repeat) {
    Timer timer;
    for (int i = 0; i < warmup + repeat; i++) {
        mark_run(i);
        if (i < warmup) {
            op.compute();
        } else {
            timer.measure([&op] { op.compute(); });
        }
    }
    return timer;
}

void run(const Options &options, ggml_backend_dev_t device, ggml_backend_t kept = nullptr) {
    const CaseFile file(options.case_path, !options.dry);
    const Backend own = kept == nullptr ? open_backend(device, options.threads) : nullptr;
    Op op(file, kept == nullptr ? own.get() : kept);

    ResultFile result;
    result.set("fattn.run.digest", file.string("fattn.digest"));
    result.set("fattn.run.backend", ggml_backend_dev_name(device));
    result.set("fattn.run.device", ggml_backend_dev_description(device));
    const std::string unsupported = op.unsupported();
    result.set("fattn.run.status", unsupported.empty() ? "ok" : "unsupported");
    result.set("fattn.run.reason", unsupported);
    if (unsupported.empty() && !options.support_only) {
        op.allocate_dst();
        if (!options.dry) {
            op.poison_dst();
        }
        SelectionFile::run_all_blocks();
        std::vector<Range> ranges = {{0, ggml_nbytes(op.dst())}};
        if (!options.selection_path.empty()) {
            const SelectionFile selection(options.selection_path);
            selection.select_blocks();
            ranges = selection.dst_ranges();
        }
        const Timer timer = time_runs(op, options.warmup, options.repeat);
        result.set("fattn.run.clock", timer.clock());
        result.set("fattn.run.seconds", timer.seconds().data(), timer.seconds().size());
        if (!options.dry) {
            result.set_dst(op.dst());
            for (const Range &range : ranges) {
                result.add_dst(range.offset, op.dst_bytes(range));
            }
        }
    }
    result.write(options.out_path);
    if (fattn_probe_case_done != nullptr) {
        fattn_probe_case_done();
    }
}

} // namespace

int main(int argc, char **argv) {
    report_crashes();
    bool shown = false;
    ggml_log_set(log_warnings, &shown);
    try {
        const Options options = parse_options(argc, argv);
        const ggml_backend_dev_t device = find_device(options.backend);
        if (options.batch) {
            const Backend kept = options.keep ? open_backend(device, options.threads) : nullptr;
            each_of_batch(options, [&](const Options &one) { run(one, device, kept.get()); });
        } else {
            run(options, device);
        }
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "fattn-runner: %s\n", error.what());
        return 1;
    }
}

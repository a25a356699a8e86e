// The evaluation callback: offers each attention op to the reader of standard output, and writes those that it takes.
//
// A dialogue of lines, each of which is answered before the next one: the model ({"model": ...}) and each
// evaluation ({"step": 2}) by `go`; an op with its size ({"offer": ...}) by `yes` or `no`; after `yes` the op
// ({"op": ...}), whose bytes are in the raw file, by `next`.
#pragma once

#include "op_record.h"

#include <exception>
#include <iostream>

// Asks the other side of the dialogue; it is gone if there is no answer.
inline std::string ask(const std::string &line) {
    std::cout << line << std::endl;
    std::string answer;
    if (!std::getline(std::cin, answer)) {
        throw LostError("nobody reads what is captured");
    }
    return answer;
}

class Recorder {
  public:
    explicit Recorder(const Options &options) : options_(options) {}

    // Says what is evaluated next: its number, and whether its ops are offered.
    void begin(int step, const std::string &phase, bool offered) {
        step_ = step;
        phase_ = phase;
        offered_ = offered;
        seen_.clear();
        ask(json::Object().add("step", step).str());
    }

    // ggml_backend_sched_eval_callback. Before an op: whether it is wanted; after it: whether to go on.
    static bool callback(ggml_tensor *tensor, bool before, void *recorder) {
        Recorder &self = *static_cast<Recorder *>(recorder);
        try {
            return before ? self.wants(tensor) : self.record(tensor);
        } catch (const std::exception &) {
            self.error_ = std::current_exception();
            return false;
        }
    }

    // An exception does not pass through llama.cpp.
    void rethrow() const {
        if (error_ != nullptr) {
            std::rethrow_exception(error_);
        }
    }

    size_t nodes() const { return nodes_; }

  private:
    bool wants(const ggml_tensor *tensor) {
        if (tensor->op != GGML_OP_FLASH_ATTN_EXT) {
            return false;
        }
        nodes_++;
        const OpRecord op(tensor);
        layer_ = op.layer() >= 0 ? op.layer() : int(seen_.size());
        part_ = seen_[layer_]++;
        const bool wanted = options_.layers.empty() || options_.layers.count(layer_) > 0;
        return offered_ && wanted && error_ == nullptr && ask(offer(op)) == "yes";
    }

    std::string offer(const OpRecord &op) const {
        const std::string found = json::Object()
                                      .add("layer", layer_)
                                      .add("step", step_)
                                      .add("part", part_)
                                      .add("phase", json::text(phase_))
                                      .add("bytes", int64_t(op.bytes()))
                                      .add("most", int64_t(op.most_bytes()))
                                      .str();
        return json::Object().add("offer", found).str();
    }

    bool record(const ggml_tensor *tensor) {
        const OpRecord op(tensor);
        op.write(options_.raw_path);
        return ask(json::Object().add("op", op.describe()).str()) == "next";
    }

    const Options &options_;
    int step_ = 0;
    std::string phase_;
    bool offered_ = false;
    int layer_ = 0;
    int part_ = 0;
    size_t nodes_ = 0;
    std::map<int, int> seen_; // how often each layer's op ran in this step
    std::exception_ptr error_;
};

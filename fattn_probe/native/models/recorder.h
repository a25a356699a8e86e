// Offers each attention op to the reader of standard output, and writes the ops that the reader accepts.
//
// A dialogue of lines; the reader answers each line before the next one. For the model ({"model": ...}) and for each
// evaluation ({"step": 2}), the answer is `go`; for an op with its size ({"offer": ...}), it is `yes` or `no`. After
// `yes`, the op follows ({"op": ...}), with its bytes in the raw file; the answer is `next`.
//
// In the requested evaluations, a model on a device computes one tensor at a time, so all launches between an offer and
// its op belong to that op.
#pragma once

#include "observer.h"
#include "op_record.h"

class Recorder : public Observer {
  public:
    explicit Recorder(const Options &options) : options_(options) {}

  protected:
    void begun() override { seen_.clear(); }

    bool before(const ggml_tensor *tensor) override {
        taken_ = false;
        if (tensor->op != GGML_OP_FLASH_ATTN_EXT) {
            return alone();
        }
        nodes_++;
        const OpRecord op(tensor);
        layer_ = op.layer() >= 0 ? op.layer() : int(seen_.size());
        part_ = seen_[layer_]++;
        const bool chosen = options_.layers.empty() || options_.layers.count(layer_) > 0;
        taken_ = wanted_ && chosen && ask(offer(op)) == "yes";
        return taken_ || alone();
    }

    bool after(const ggml_tensor *tensor) override {
        if (!taken_) {
            return true;
        }
        const OpRecord op(tensor);
        op.write(options_.raw_path);
        return ask(json::Object().add("op", op.describe()).add("ran_on", devices()).str()) == "next";
    }

  private:
    // Whether tensors are computed one at a time.
    bool alone() const { return wanted_ && options_.on_device; }

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

    const Options &options_;
    int layer_ = 0;
    int part_ = 0;
    bool taken_ = false;
    std::map<int, int> seen_; // how often each layer's op ran in this step
};

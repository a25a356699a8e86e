// Describes the values of each tensor in a model's graphs, and how a device's output differs from them.
//
// A dialogue of lines; the reader answers each line before the next one. The answer is `go` for the model
// ({"model": ...}), an evaluation ({"step": 2}) and an op that a device is about to run ({"runs": "ROPE Qcur-0"}); it
// is `next` for a computed tensor ({"node": ...}).
#pragma once

#include "device.h"
#include "observer.h"
#include "values.h"

class Walker : public Observer {
  public:
    explicit Walker(const Options &options) {
        if (!options.device_ops.empty()) {
            device_ = std::make_unique<Device>(options.device_ops);
        }
    }

  protected:
    void begun() override {
        first_.clear();
        part_ = -1;
    }

    bool before(const ggml_tensor *tensor) override {
        count(tensor);
        if (!wanted_ || !computed_(tensor)) {
            return false;
        }
        nodes_++;
        inputs_ = Census();
        for (const ggml_tensor *source : tensor->src) {
            if (source != nullptr) {
                const Census found = census_of_source(source);
                inputs_.nan += found.nan;
                inputs_.inf += found.inf;
            }
        }
        ran_ = device_ != nullptr && device_->runs(tensor);
        if (ran_) { // before the op, which may overwrite its inputs
            ask(json::Object().add("runs", json::text(title(tensor))).str());
            output_ = device_->run(tensor);
        }
        return true;
    }

    bool after(const ggml_tensor *tensor) override {
        return ask(json::Object().add("node", describe(tensor)).str()) == "next";
    }

  private:
    // Counts the parts of a step: the first tensor of the graph occurs again in each part.
    void count(const ggml_tensor *tensor) {
        const std::string name = title(tensor);
        if (part_ < 0) {
            first_ = name;
        }
        if (name == first_) {
            part_++;
            index_ = 0;
        } else {
            index_++;
        }
    }

    static std::string title(const ggml_tensor *tensor) {
        return std::string(ggml_op_name(tensor->op)) + " " + tensor->name;
    }

    // Weights do not change, so they are read once. Data in a private layout of the CPU backend is not read.
    Census census_of_source(const ggml_tensor *tensor) {
        if (!in_host_memory(tensor)) {
            return {};
        }
        const char *const data = static_cast<const char *>(tensor->data);
        if (ggml_backend_buffer_get_usage(buffer_of(tensor)) != GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
            return census_of(tensor, data);
        }
        const auto found = weights_.find(tensor);
        return found != weights_.end() ? found->second : weights_[tensor] = census_of(tensor, data);
    }

    std::string describe(const ggml_tensor *tensor) const {
        const char *const data = static_cast<const char *>(tensor->data);
        const Census own = census_of(tensor, data);
        std::string sources;
        for (const ggml_tensor *source : tensor->src) {
            if (source != nullptr) {
                sources += (sources.empty() ? "" : ",") + json::text(source->name);
            }
        }
        return json::Object()
            .add("step", step_)
            .add("part", part_)
            .add("index", index_)
            .add("name", json::text(tensor->name))
            .add("op", json::text(ggml_op_name(tensor->op)))
            .add("type", json::text(ggml_type_name(tensor->type)))
            .add("ne", json::array(tensor->ne, GGML_MAX_DIMS))
            .add("nan", own.nan)
            .add("inf", own.inf)
            .add("largest", json::number(own.largest))
            .add("inputs", "[" + sources + "]")
            .add("inputs_nan", inputs_.nan)
            .add("inputs_inf", inputs_.inf)
            .add("device", ran_ ? contrast_of(tensor, data, output_.data()).str() : "null")
            .str();
    }

    std::unique_ptr<Device> device_;
    std::string first_;
    int part_ = -1;
    int index_ = 0;
    Census inputs_;
    bool ran_ = false;
    std::vector<char> output_;
    std::map<const ggml_tensor *, Census> weights_;
};

// Observes the evaluation of a model's graphs tensor by tensor, and talks to the reader of standard output.
#pragma once

#include "computed.h"
#include "json.h"
#include "options.h"

#include <exception>
#include <iostream>
#include <map>
#include <string>

// Sends a line to the other side of the dialogue, and returns the answer; throws if the other side is gone.
inline std::string ask(const std::string &line) {
    std::cout << line << std::endl;
    std::string answer;
    if (!std::getline(std::cin, answer)) {
        throw LostError("nobody reads what is captured");
    }
    return answer;
}

class Observer {
  public:
    virtual ~Observer() = default;

    // Announces the next evaluation: its number, and whether it was requested.
    void begin(int step, const std::string &phase, bool wanted) {
        step_ = step;
        phase_ = phase;
        wanted_ = wanted;
        begun();
        ask(json::Object().add("step", step).str());
    }

    // ggml_backend_sched_eval_callback. Before an op, returns whether it is wanted; after it, whether to go on.
    static bool callback(ggml_tensor *tensor, bool before, void *observer) {
        Observer &self = *static_cast<Observer *>(observer);
        try {
            if (!before) {
                return self.after(tensor);
            }
            self.count(tensor);
            return self.error_ == nullptr && self.before(tensor);
        } catch (const std::exception &) {
            self.error_ = std::current_exception();
            return false;
        }
    }

    // An exception must not propagate through llama.cpp, so it is kept and thrown here.
    void rethrow() const {
        if (error_ != nullptr) {
            std::rethrow_exception(error_);
        }
    }

    // How often each device has computed the op so far, as JSON.
    std::string devices() const {
        json::Object found;
        for (const auto &[device, counts] : computed_on_) {
            json::Object ops;
            for (const auto &[op, count] : counts) {
                ops.add(op, count);
            }
            found.add(device, ops.str());
        }
        return found.str();
    }

    // The number of observed ops.
    size_t nodes() const { return nodes_; }

  protected:
    virtual void begun() = 0;
    virtual bool before(const ggml_tensor *tensor) = 0;
    virtual bool after(const ggml_tensor *tensor) = 0;

    int step_ = 0;
    std::string phase_;
    bool wanted_ = false;
    size_t nodes_ = 0;
    const Computed computed_;

  private:
    void count(const ggml_tensor *tensor) {
        if (computed_(tensor)) {
            computed_on_[device_of(tensor)][ggml_op_name(tensor->op)]++;
        }
    }

    std::map<std::string, std::map<std::string, int64_t>> computed_on_;
    std::exception_ptr error_;
};

// What watches the evaluation of a model's graphs, tensor by tensor, and speaks to the reader of standard output.
#pragma once

#include "ggml.h"
#include "json.h"
#include "options.h"

#include <exception>
#include <iostream>
#include <string>

// Asks the other side of the dialogue; it is gone if there is no answer.
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

    // Says what is evaluated next: its number, and whether it is one of those asked for.
    void begin(int step, const std::string &phase, bool wanted) {
        step_ = step;
        phase_ = phase;
        wanted_ = wanted;
        begun();
        ask(json::Object().add("step", step).str());
    }

    // ggml_backend_sched_eval_callback. Before an op: whether it is wanted; after it: whether to go on.
    static bool callback(ggml_tensor *tensor, bool before, void *observer) {
        Observer &self = *static_cast<Observer *>(observer);
        try {
            return before ? self.error_ == nullptr && self.before(tensor) : self.after(tensor);
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

    // The number of ops of the kind that is observed.
    size_t nodes() const { return nodes_; }

  protected:
    virtual void begun() = 0;
    virtual bool before(const ggml_tensor *tensor) = 0;
    virtual bool after(const ggml_tensor *tensor) = 0;

    int step_ = 0;
    std::string phase_;
    bool wanted_ = false;
    size_t nodes_ = 0;

  private:
    std::exception_ptr error_;
};

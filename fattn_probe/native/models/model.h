// A model and a context of llama.cpp.
#pragma once

#include "llama.h"
#include "model_device.h"
#include "observer.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>

// The errors that llama.cpp and ggml log.
class Log {
  public:
    Log() { llama_log_set(add, this); }

    // The logged errors, on one line.
    std::string errors() const {
        std::string out = errors_;
        std::replace(out.begin(), out.end(), '\n', ' ');
        return out.substr(0, out.find_last_not_of(' ') + 1);
    }

  private:
    static void add(ggml_log_level level, const char *text, void *log) {
        Log &self = *static_cast<Log *>(log);
        self.error_ = level == GGML_LOG_LEVEL_CONT ? self.error_ : level == GGML_LOG_LEVEL_ERROR;
        if (self.error_) {
            self.errors_ += text;
        }
    }

    std::string errors_;
    bool error_ = false;
};

class Model {
  public:
    Model(const Options &options, Observer &observer, const Log &log) : options_(options) {
        llama_model_params params = llama_model_default_params();
        ggml_backend_dev_t devices[] = {options.on_device ? restricted_device(options.device_ops) : nullptr, nullptr};
        params.devices = devices;
        params.n_gpu_layers = options.on_device ? all_layers : 0;
        device_ = devices[0] != nullptr ? ggml_backend_dev_description(devices[0]) : "CPU";
        model_.reset(llama_model_load_from_file(options.model_path.c_str(), params));
        if (model_ == nullptr) {
            throw InputError("llama.cpp cannot load the model: " + log.errors());
        }
        if (llama_model_has_encoder(model_.get()) || !llama_model_has_decoder(model_.get())) {
            throw InputError("the model has an encoder: only decoders are captured");
        }
        read_prompt();
        start(observer, log);
    }

    const std::vector<std::vector<llama_token>> &prompts() const { return prompts_; }
    int length() const { return int(prompts_[0].size()); }
    // The name that the model's device reports.
    const std::string &device() const { return device_; }
    int layers() const { return llama_model_n_layer(model_.get()); }
    int context() const { return int(llama_n_ctx(context_.get())); }

    std::string description() const {
        char text[256] = "";
        llama_model_desc(model_.get(), text, sizeof(text));
        return text;
    }

    // The number of evaluations of the prompt.
    int prompt_steps() const { return (length() + chunk() - 1) / chunk(); }

    // Evaluates one part of the prompts, counted from 0.
    void evaluate_prompt(int step) {
        const int first = step * chunk();
        const int count = std::min(chunk(), length() - first);
        std::vector<std::vector<llama_token>> tokens;
        for (const auto &prompt : prompts_) {
            tokens.emplace_back(prompt.begin() + first, prompt.begin() + first + count);
        }
        evaluate(tokens, first);
    }

    // Evaluates the most likely next token of each sequence.
    void evaluate_next(int position) {
        std::vector<std::vector<llama_token>> tokens;
        for (const llama_token token : next_) {
            tokens.push_back({token});
        }
        evaluate(tokens, position);
    }

    const std::vector<llama_token> &next() const { return next_; }
    bool finite() const { return finite_; }

  private:
    struct Free {
        void operator()(llama_model *model) const { llama_model_free(model); }
        void operator()(llama_context *context) const { llama_free(context); }
    };

    int chunk() const { return std::max(1, options_.batch / options_.sequences); }
    const llama_vocab *vocab() const { return llama_model_get_vocab(model_.get()); }

    void read_prompt() {
        if (options_.prompt_path.empty()) {
            std::mt19937 random(options_.seed);
            for (int i = 0; i < options_.sequences; i++) {
                prompts_.push_back(random_tokens(random));
            }
        } else {
            prompts_.assign(options_.sequences, tokenize());
        }
        if (length() == 0) {
            throw InputError("the prompt has 0 tokens");
        }
    }

    std::vector<llama_token> random_tokens(std::mt19937 &random) const {
        std::vector<llama_token> tokens;
        const uint32_t known = llama_vocab_n_tokens(vocab());
        for (int left = 1000 * options_.tokens; int(tokens.size()) < options_.tokens; left--) {
            if (left < 0) {
                throw InputError("the vocabulary has hardly any token but control tokens");
            }
            const llama_token token = llama_token(random() % known);
            if (!llama_vocab_is_control(vocab(), token)) {
                tokens.push_back(token);
            }
        }
        return tokens;
    }

    std::vector<llama_token> tokenize() const {
        std::ostringstream text;
        text << std::ifstream(options_.prompt_path, std::ios::binary).rdbuf();
        const std::string prompt = text.str();
        std::vector<llama_token> tokens(prompt.size() + 8);
        const int found = llama_tokenize(vocab(), prompt.data(), int(prompt.size()), tokens.data(), int(tokens.size()),
                                         /*add_special =*/true, /*parse_special =*/true);
        if (found < 0 || prompt.empty()) {
            throw InputError(prompt.empty() ? "the prompt has 0 tokens" : "the prompt cannot be tokenized");
        }
        tokens.resize(found);
        return tokens;
    }

    void start(Observer &observer, const Log &log) {
        const int needed = length() + options_.generate;
        const int positions = options_.context > 0 ? options_.context : needed;
        if (positions < needed) {
            throw InputError("a context of " + std::to_string(positions) + " positions is less than the " +
                             std::to_string(needed) + " of the prompt and the generated tokens");
        }
        llama_context_params params = llama_context_default_params();
        params.n_ctx = uint32_t(positions) * options_.sequences;
        params.n_batch = params.n_ubatch = std::max(1, std::min(options_.batch, needed * options_.sequences));
        params.n_seq_max = options_.sequences;
        params.n_threads = params.n_threads_batch = options_.threads;
        params.flash_attn_type =
            options_.without_flash_attn ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.type_k = options_.type_k;
        params.type_v = options_.type_v;
        params.swa_full = false;
        params.cb_eval = Observer::callback;
        params.cb_eval_user_data = &observer;
        context_.reset(llama_init_from_model(model_.get(), params));
        if (context_ == nullptr) {
            throw MachineError("llama.cpp cannot make a context of " + std::to_string(params.n_ctx) +
                               " positions: " + log.errors());
        }
    }

    // Evaluates the same number of tokens of each sequence, from a position on, and finds the most likely next tokens.
    void evaluate(const std::vector<std::vector<llama_token>> &tokens, int position) {
        const int count = int(tokens[0].size());
        llama_batch batch = llama_batch_init(count * int(tokens.size()), 0, 1);
        std::vector<int> last;
        for (size_t sequence = 0; sequence < tokens.size(); sequence++) {
            for (int i = 0; i < count; i++) {
                const int at = batch.n_tokens++;
                batch.token[at] = tokens[sequence][i];
                batch.pos[at] = position + i;
                batch.n_seq_id[at] = 1;
                batch.seq_id[at][0] = llama_seq_id(sequence);
                batch.logits[at] = i + 1 == count;
            }
            last.push_back(batch.n_tokens - 1);
        }
        const int status = llama_decode(context_.get(), batch);
        llama_batch_free(batch);
        if (status != 0) {
            throw LostError("llama_decode ended with status " + std::to_string(status));
        }
        next_.clear();
        for (const int at : last) {
            next_.push_back(best(llama_get_logits_ith(context_.get(), at)));
        }
    }

    llama_token best(const float *logits) {
        const int known = llama_vocab_n_tokens(vocab());
        for (int i = 0; i < known; i++) {
            finite_ = finite_ && std::isfinite(logits[i]);
        }
        return llama_token(std::max_element(logits, logits + known) - logits);
    }

    static constexpr int all_layers = 1 << 20;

    const Options &options_;
    std::string device_;
    std::unique_ptr<llama_model, Free> model_;
    std::unique_ptr<llama_context, Free> context_;
    std::vector<std::vector<llama_token>> prompts_;
    std::vector<llama_token> next_;
    bool finite_ = true;
};

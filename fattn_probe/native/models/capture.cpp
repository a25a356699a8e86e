// fattn-capture: runs a prompt through a model with libllama, and writes the FLASH_ATTN_EXT ops of its graphs or, with
// --walk, describes the values of each tensor in its graphs.
//
// It uses only llama.cpp's public API. On standard output it prints one JSON document per line; see recorder.h and
// walker.h.

#include "model.h"
#include "recorder.h"
#include "walker.h"

#include <sys/resource.h>

namespace {

// Makes allocations that exceed the machine's memory fail, so that the process is not killed when it uses them.
void limit_memory(int64_t bytes) {
    if (bytes > 0) {
        const rlimit limit = {rlim_t(bytes), rlim_t(bytes)};
        setrlimit(RLIMIT_DATA, &limit);
    }
}

std::string describe(const Model &model, int steps) {
    std::string prompts;
    for (const auto &prompt : model.prompts()) {
        prompts += (prompts.empty() ? "" : ",") + json::array(prompt.data(), prompt.size());
    }
    const std::string found = json::Object()
                                  .add("description", json::text(model.description()))
                                  .add("device", json::text(model.device()))
                                  .add("layers", model.layers())
                                  .add("context", model.context())
                                  .add("prompts", "[" + prompts + "]")
                                  .add("steps", steps)
                                  .str();
    return json::Object().add("model", found).str();
}

std::string describe_end(const Model &model, const Observer &observer,
                         const std::vector<std::vector<llama_token>> &generated) {
    std::string tokens;
    for (const auto &step : generated) {
        tokens += (tokens.empty() ? "" : ",") + json::array(step.data(), step.size());
    }
    const std::string found = json::Object()
                                  .add("ops", int64_t(observer.nodes()))
                                  .add("ran_on", observer.devices())
                                  .add("finite", model.finite() ? "true" : "false")
                                  .add("generated", "[" + tokens + "]")
                                  .str();
    return json::Object().add("end", found).str();
}

std::unique_ptr<Observer> observer_of(const Options &options) {
    if (options.walk) {
        return std::make_unique<Walker>(options);
    }
    return std::make_unique<Recorder>(options);
}

void run(const Options &options) {
    limit_memory(options.memory);
    const Log log;
    const std::unique_ptr<Observer> observer = observer_of(options);
    Model model(options, *observer, log);
    const int prompt_steps = model.prompt_steps();
    const int steps = prompt_steps + options.generate;
    std::vector<std::vector<llama_token>> generated;
    ask(describe(model, steps));
    for (int step = 0; step < steps; step++) {
        const bool prompt = step < prompt_steps;
        const bool last = step == prompt_steps - 1 || step == steps - 1;
        observer->begin(step, prompt ? "prompt" : "generate", options.every || last);
        if (prompt) {
            model.evaluate_prompt(step);
        } else {
            generated.push_back(model.next());
            model.evaluate_next(model.length() + step - prompt_steps);
        }
        observer->rethrow();
    }
    std::cout << describe_end(model, *observer, generated) << std::endl;
}

int failed(const std::exception &error, int code) {
    std::fprintf(stderr, "fattn-capture: %s\n", error.what());
    return code;
}

} // namespace

int main(int argc, char **argv) {
    try {
        run(parse_options(argc, argv));
        return 0;
    } catch (const InputError &error) {
        return failed(error, 2);
    } catch (const MachineError &error) {
        return failed(error, 3);
    } catch (const std::exception &error) {
        return failed(error, 4);
    }
}

// One FLASH_ATTN_EXT op with its inputs and the expected output: NAME
// Written by fattn-probe; README.md says how to compile it and what was found.
//
//   reproduce [inputs.gguf [DEVICE]]
//
// DEVICE is a ggml device such as CUDA0 or ROCm0; default: the first GPU. Exit status: 0 if the output is correct, 1 if
// it is wrong, 2 if the op could not be run.
#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static void require(bool good, const std::string &message) {
    if (!good) {
        std::fprintf(stderr, "reproduce: %s\n", message.c_str());
        std::exit(2);
    }
}

// The input file: keys `fattn.*` describe the op; its tensors are the operands' memory and the expected output.
struct File {
    ggml_context *tensors = nullptr;
    gguf_context *keys = nullptr;

    explicit File(const char *path) {
        keys = gguf_init_from_file(path, {/*no_alloc =*/false, /*ctx =*/&tensors});
        require(keys != nullptr, std::string(path) + " cannot be read");
    }

    bool has(const std::string &key) const { return gguf_find_key(keys, key.c_str()) >= 0; }

    int64_t find(const std::string &key) const {
        require(has(key), "the file has no key " + key);
        return gguf_find_key(keys, key.c_str());
    }

    float f32(const std::string &key) const { return gguf_get_val_f32(keys, find(key)); }

    std::array<int64_t, 4> four(const std::string &key) const {
        const int64_t *values = static_cast<const int64_t *>(gguf_get_arr_data(keys, find(key)));
        return {values[0], values[1], values[2], values[3]};
    }

    // The values of a float tensor; empty if the file does not have it.
    std::vector<float> floats(const char *name) const {
        const ggml_tensor *tensor = ggml_get_tensor(tensors, name);
        if (tensor == nullptr) {
            return {};
        }
        const float *values = static_cast<const float *>(tensor->data);
        return {values, values + ggml_nelements(tensor)};
    }
};

// Each tensor has a separate buffer, so that an access past its end does not reach another tensor.
static void allocate(ggml_tensor *tensor, ggml_backend_t backend) {
    const ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(backend);
    const ggml_backend_buffer_t buffer =
        ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alloc_size(type, tensor));
    require(buffer != nullptr, std::string("there is not enough memory for ") + tensor->name);
    ggml_backend_buffer_clear(buffer, 0xff); // NaN, so that unwritten elements are visible
    ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer));
}

// The memory of operands; if the file has only a part of it, that part is repeated.
static ggml_tensor *root(ggml_context *ctx, ggml_backend_t backend, const File &file, const std::string &name) {
    if (ggml_tensor *made = ggml_get_tensor(ctx, name.c_str())) {
        return made;
    }
    const ggml_tensor *part = ggml_get_tensor(file.tensors, name.c_str());
    require(part != nullptr, "the file has no tensor " + name);
    const std::string key = "fattn.root." + name + ".ne";
    const int64_t *ne = part->ne;
    const std::array<int64_t, 4> whole =
        file.has(key) ? file.four(key) : std::array<int64_t, 4>{ne[0], ne[1], ne[2], ne[3]};
    ggml_tensor *tensor = ggml_new_tensor(ctx, part->type, 4, whole.data());
    ggml_set_name(tensor, name.c_str());
    allocate(tensor, backend);
    const size_t size = ggml_nbytes(tensor), period = ggml_nbytes(part);
    for (size_t offset = 0; offset < size; offset += period) {
        ggml_backend_tensor_set(tensor, part->data, offset, std::min(period, size - offset));
    }
    return tensor;
}

// An operand: a root, or a view of one; null if the op has no operand of that name.
static ggml_tensor *operand(ggml_context *ctx, ggml_backend_t backend, const File &file, const std::string &name) {
    const std::string key = "fattn." + name;
    if (!file.has(key + ".root")) {
        return nullptr;
    }
    ggml_tensor *base = root(ctx, backend, file, gguf_get_val_str(file.keys, file.find(key + ".root")));
    const std::array<int64_t, 4> ne = file.four(key + ".ne"), nb = file.four(key + ".nb");
    const size_t offset = gguf_get_val_u64(file.keys, file.find(key + ".offset"));
    bool same = offset == 0;
    for (int i = 0; i < 4; i++) {
        same = same && ne[i] == base->ne[i] && size_t(nb[i]) == base->nb[i];
    }
    if (same) {
        return base;
    }
    ggml_tensor *view = ggml_view_4d(ctx, base, ne[0], ne[1], ne[2], ne[3], nb[1], nb[2], nb[3], offset);
    ggml_set_name(view, (name + " view").c_str());
    ggml_backend_view_init(view);
    return view;
}

static std::vector<float> compute(const File &file, ggml_backend_t backend) {
    ggml_context *ctx =
        ggml_init({32 * ggml_tensor_overhead() + ggml_graph_overhead(), /*mem_buffer =*/nullptr, /*no_alloc =*/true});
    ggml_tensor *Q = operand(ctx, backend, file, "Q");
    ggml_tensor *K = operand(ctx, backend, file, "K");
    ggml_tensor *V = operand(ctx, backend, file, "V");
    ggml_tensor *mask = operand(ctx, backend, file, "mask");
    ggml_tensor *dst = ggml_flash_attn_ext(ctx, Q, K, V, mask, file.f32("fattn.scale"), file.f32("fattn.max_bias"),
                                           file.f32("fattn.logit_softcap"));
    // SETTERS
    ggml_set_name(dst, "dst");
    require(ggml_backend_supports_op(backend, dst), "the device does not support this op");
    allocate(dst, backend);
    ggml_cgraph *graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, dst);
    require(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS, "the op could not be computed");
    std::vector<float> output(ggml_nelements(dst));
    ggml_backend_tensor_get(dst, output.data(), 0, output.size() * sizeof(float));
    return output;
}

// Whether two values, at least one of them not finite, are equal: the same infinity, or both NaN.
static bool same_kind(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Prints the errors of an output; returns the number of bounds that it exceeds.
static int64_t compare(const File &file, const std::vector<float> &output) {
    const std::vector<float> expected = file.floats("expected"), exact = file.floats("exact");
    const std::vector<float> element_bound = file.floats("element_bound"), row_bound = file.floats("row_bound");
    require(expected.size() == output.size(), "the expected output has a different size");
    const ggml_tensor *shape = ggml_get_tensor(file.tensors, "expected");
    const size_t hsv = shape->ne[0], heads = shape->ne[1], queries = shape->ne[2];
    int64_t unlike = 0, elements = 0, rows = 0;
    double square = 0.0, size = 0.0, error = 0.0, largest = -1.0;
    size_t worst = 0;
    for (size_t row = 0; row < output.size() / hsv; row++) {
        double sum = 0.0;
        for (size_t i = row * hsv; i < (row + 1) * hsv; i++) {
            const bool finite = std::isfinite(output[i]) && std::isfinite(expected[i]);
            unlike += !finite && !same_kind(output[i], expected[i]);
            const double off = finite ? std::fabs(double(output[i]) - expected[i])
                                      : (same_kind(output[i], expected[i]) ? 0.0 : INFINITY);
            elements += finite && !element_bound.empty() && off > element_bound[i];
            sum += finite ? off * off : 0.0;
            const float answer = exact.empty() ? expected[i] : exact[i];
            size += double(answer) * answer;
            error += (double(output[i]) - answer) * (double(output[i]) - answer);
            if (off > largest) {
                largest = off;
                worst = i;
            }
        }
        rows += !row_bound.empty() && std::sqrt(sum / hsv) > row_bound[row];
        square += sum;
    }
    const double rmse = std::sqrt(square / output.size()), allowed = file.f32("reproduce.rmse_bound");
    const size_t row = worst / hsv;
    std::printf("NMSE           %.3g\n", std::fabs(error / size));
    std::printf("RMSE           %.3g, allowed %.3g\n", rmse, allowed);
    std::printf("largest error  %.3g at sequence %zu, query %zu, head %zu, element %zu: %.9g, expected %.9g\n", largest,
                row / heads / queries, row / heads % queries, row % heads, worst % hsv, output[worst], expected[worst]);
    std::printf("over bounds    %lld elements, %lld rows of %zu\n", (long long)elements, (long long)rows,
                output.size() / hsv);
    std::printf("not finite     %lld elements, in only one of the two outputs\n", (long long)unlike);
    return unlike + elements + rows + (rmse > allowed);
}

static ggml_backend_dev_t find_device(const char *name) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        const ggml_backend_dev_t device = ggml_backend_dev_get(i);
        const enum ggml_backend_dev_type type = ggml_backend_dev_type(device);
        const bool gpu = type != GGML_BACKEND_DEVICE_TYPE_CPU && type != GGML_BACKEND_DEVICE_TYPE_ACCEL;
        if (name == nullptr ? gpu : std::string(name) == ggml_backend_dev_name(device)) {
            return device;
        }
    }
    require(false, name == nullptr ? "ggml has no GPU here" : std::string("ggml has no device ") + name + " here");
    return nullptr;
}

int main(int argc, char **argv) {
    const File file(argc > 1 ? argv[1] : "inputs.gguf");
    ggml_backend_load_all();
    const ggml_backend_dev_t device = find_device(argc > 2 ? argv[2] : nullptr);
    const ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
    require(backend != nullptr, "the device cannot be used");
    std::printf("device         %s, %s\n", ggml_backend_dev_name(device), ggml_backend_dev_description(device));
    const int64_t wrong = compare(file, compute(file, backend));
    std::printf("%s\n", wrong > 0 ? "FAIL" : "PASS");
    return wrong > 0 ? 1 : 0;
}

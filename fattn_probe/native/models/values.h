// Reads the values of a tensor of any type and strides: counts NaN and infinity, and compares two tensors.
#pragma once

#include "ggml.h"
#include "json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

// An index of a tensor, in ggml's ne order.
using Place = std::array<int64_t, 4>;

template <typename T> void convert_row(const char *row, size_t stride, std::vector<float> &values) {
    for (size_t i = 0; i < values.size(); i++) {
        T value;
        std::memcpy(&value, row + i * stride, sizeof(value));
        values[i] = float(value);
    }
}

// Reads a row of ne[0] values; values of quantised types are decoded.
inline void read_row(const ggml_tensor *tensor, const char *row, std::vector<float> &values) {
    const size_t stride = tensor->nb[0];
    switch (tensor->type) {
    case GGML_TYPE_F32:
        return convert_row<float>(row, stride, values);
    case GGML_TYPE_F64:
        return convert_row<double>(row, stride, values);
    case GGML_TYPE_I8:
        return convert_row<int8_t>(row, stride, values);
    case GGML_TYPE_I16:
        return convert_row<int16_t>(row, stride, values);
    case GGML_TYPE_I32:
        return convert_row<int32_t>(row, stride, values);
    case GGML_TYPE_I64:
        return convert_row<int64_t>(row, stride, values);
    default:
        break;
    }
    const ggml_to_float_t decode = ggml_get_type_traits(tensor->type)->to_float;
    if (stride == ggml_type_size(tensor->type)) {
        return decode(row, values.data(), int64_t(values.size()));
    }
    for (size_t i = 0; i < values.size(); i++) { // a transposed view; quantised types have none
        decode(row + i * stride, &values[i], 1);
    }
}

// Calls a function with the values and the index of each row; the tensor's bytes begin at `data`.
template <typename Use> void each_row(const ggml_tensor *tensor, const char *data, Use use) {
    std::vector<float> values(tensor->ne[0]);
    for (int64_t i3 = 0; i3 < tensor->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < tensor->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < tensor->ne[1]; i1++) {
                read_row(tensor, data + i1 * tensor->nb[1] + i2 * tensor->nb[2] + i3 * tensor->nb[3], values);
                use(values, Place{0, i1, i2, i3});
            }
        }
    }
}

// Counts of a tensor's values.
struct Census {
    int64_t nan = 0;
    int64_t inf = 0;    // of both signs
    double largest = 0; // finite magnitude

    void add(float value) {
        if (std::isfinite(value)) {
            largest = std::max(largest, double(std::fabs(value)));
        } else {
            (std::isnan(value) ? nan : inf)++;
        }
    }
};

inline Census census_of(const ggml_tensor *tensor, const char *data) {
    Census found;
    each_row(tensor, data, [&found](const std::vector<float> &values, const Place &) {
        for (const float value : values) {
            found.add(value);
        }
    });
    return found;
}

// The difference between a device's output and the CPU's output.
struct Contrast {
    double error = 0;  // sum of squared differences, where both are finite
    double signal = 0; // sum of the squares of the CPU's values, at the same elements
    double max_abs = 0;
    Place at = {0, 0, 0, 0}; // of the first NaN or infinity on one side only, or of the largest difference
    int64_t nan = 0;         // on one side only
    int64_t inf = 0;         // on one side only, or of opposite signs; not opposite a NaN

    void add(float device, float cpu, const Place &place) {
        if (std::isfinite(device) && std::isfinite(cpu)) {
            const double difference = double(device) - double(cpu);
            error += difference * difference;
            signal += double(cpu) * double(cpu);
            if (std::fabs(difference) > max_abs) {
                max_abs = std::fabs(difference);
                at = nan + inf > 0 ? at : place;
            }
        } else if (std::isnan(device) != std::isnan(cpu) || (!std::isnan(cpu) && device != cpu)) {
            at = nan + inf > 0 ? at : place;
            (std::isnan(device) || std::isnan(cpu) ? nan : inf)++;
        }
    }

    std::string str() const {
        return json::Object()
            .add("error", json::number(error))
            .add("signal", json::number(signal))
            .add("max_abs", json::number(max_abs))
            .add("at", json::array(at.data(), at.size()))
            .add("nan", nan)
            .add("inf", inf)
            .str();
    }
};

// Compares a tensor whose bytes begin at `cpu` with the device's bytes at `device`, which have the same strides.
inline Contrast contrast_of(const ggml_tensor *tensor, const char *cpu, const char *device) {
    Contrast found;
    std::vector<float> other(tensor->ne[0]);
    each_row(tensor, cpu, [&](const std::vector<float> &values, Place place) {
        const size_t offset = place[1] * tensor->nb[1] + place[2] * tensor->nb[2] + place[3] * tensor->nb[3];
        read_row(tensor, device + offset, other);
        for (size_t i = 0; i < values.size(); i++) {
            place[0] = int64_t(i);
            found.add(other[i], values[i], place);
        }
    });
    return found;
}

// Writes one line of JSON.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace json {

inline std::string text(const std::string &value) {
    std::string out = "\"";
    for (const char c : value) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
            out += escaped;
        } else {
            out += c;
        }
    }
    return out + '"';
}

inline std::string number(double value) {
    char out[40];
    std::snprintf(out, sizeof(out), "%.17g", value);
    return out;
}

template <typename T> std::string array(const T *values, size_t count) {
    std::string out = "[";
    for (size_t i = 0; i < count; i++) {
        out += (i > 0 ? "," : "") + std::to_string(values[i]);
    }
    return out + "]";
}

// An object, built key by key; values must already be JSON.
class Object {
  public:
    Object &add(const std::string &key, const std::string &value) {
        out_ += (out_.size() > 1 ? "," : "") + text(key) + ":" + value;
        return *this;
    }
    Object &add(const std::string &key, int64_t value) { return add(key, std::to_string(value)); }
    std::string str() const { return out_ + "}"; }

  private:
    std::string out_ = "{";
};

} // namespace json

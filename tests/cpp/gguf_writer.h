// Writes small GGUF files into memory, right or wrong on purpose: every field can be given a value
// that a well-meaning writer would not.
//
// defines: GgufBytes, TensorSpec, tiny_model
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/model/gguf.h"

namespace sublimate::test {

struct TensorSpec {
    std::string name;
    TensorType type;
    std::vector<uint64_t> dimensions; // fastest first
    std::vector<std::byte> data;
};

class GgufBytes {
public:
    uint32_t version = 3;
    uint64_t alignment = 32;
    int64_t extra_tensors = 0; // added to the declared counts
    int64_t extra_values = 0;

    template <class Number>
    void value(const std::string& key, ValueType type, Number number) {
        begin_value(key, type);
        put(values_, number);
    }
    void text(const std::string& key, const std::string& content) {
        begin_value(key, ValueType::string);
        put_text(values_, content);
    }
    void texts(const std::string& key, const std::vector<std::string>& content) {
        begin_array(key, ValueType::string, content.size());
        for (const std::string& one : content) put_text(values_, one);
    }
    template <class Number>
    void numbers(const std::string& key, ValueType type, const std::vector<Number>& content) {
        begin_array(key, type, content.size());
        for (Number one : content) put(values_, one);
    }
    // An array header with any count, and nothing behind it.
    void bare_array(const std::string& key, ValueType type, uint64_t count) {
        begin_array(key, type, count);
    }
    // A string header with any length, and nothing behind it.
    void bare_text(const std::string& key, uint64_t length) {
        begin_value(key, ValueType::string);
        put(values_, length);
    }

    // Returns the index of the tensor; its entry can be changed by `edit` before it is written.
    void tensor(TensorSpec spec) { tensors_.push_back(std::move(spec)); }

    // `place` may change a tensor's offset (within the data) and type number as written.
    using Place = std::function<void(size_t index, uint64_t* offset, uint32_t* type)>;
    std::vector<std::byte> bytes(const Place& place = {}) const {
        std::vector<std::byte> out;
        for (char c : {'G', 'G', 'U', 'F'}) out.push_back(static_cast<std::byte>(c));
        put(out, version);
        put(out, tensors_.size() + static_cast<uint64_t>(extra_tensors));
        put(out, value_count_ + static_cast<uint64_t>(extra_values));
        out.insert(out.end(), values_.begin(), values_.end());
        uint64_t offset = 0;
        for (size_t i = 0; i < tensors_.size(); i++) {
            const TensorSpec& spec = tensors_[i];
            uint64_t written = offset;
            uint32_t type = static_cast<uint32_t>(spec.type);
            if (place) place(i, &written, &type);
            put_text(out, spec.name);
            put(out, static_cast<uint32_t>(spec.dimensions.size()));
            for (uint64_t dimension : spec.dimensions) put(out, dimension);
            put(out, type);
            put(out, written);
            offset += (spec.data.size() + alignment - 1) / alignment * alignment;
        }
        for (const TensorSpec& spec : tensors_) {
            out.resize((out.size() + alignment - 1) / alignment * alignment);
            out.insert(out.end(), spec.data.begin(), spec.data.end());
        }
        return out;
    }

private:
    template <class Number>
    static void put(std::vector<std::byte>& out, Number number) {
        auto* from = reinterpret_cast<const std::byte*>(&number);
        out.insert(out.end(), from, from + sizeof number);
    }
    static void put_text(std::vector<std::byte>& out, const std::string& text) {
        put(out, static_cast<uint64_t>(text.size()));
        for (char c : text) out.push_back(static_cast<std::byte>(c));
    }
    void begin_value(const std::string& key, ValueType type) {
        put_text(values_, key);
        put(values_, static_cast<uint32_t>(type));
        value_count_++;
    }
    void begin_array(const std::string& key, ValueType type, uint64_t count) {
        begin_value(key, ValueType::array);
        put(values_, static_cast<uint32_t>(type));
        put(values_, count);
    }

    std::vector<std::byte> values_;
    uint64_t value_count_ = 0;
    std::vector<TensorSpec> tensors_;
};

} // namespace sublimate::test

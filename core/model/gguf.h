// A reader of GGUF files, versions 2 and 3 (the format's specification: ggml, docs/gguf.md).
// Nothing in the file is trusted: sizes are added and multiplied only through checked.h, every
// count is bounded by the bytes that are left, and a value can be read only as the type it was
// declared with. Views point into the file's bytes.
//
// defines: ValueType, TensorType, GgufValue, GgufTensor, Gguf, parse_byte_token
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../check.h"
#include "../limits.h"
#include "memory.h"
#include "status.h"

namespace sublimate {

enum class ValueType : uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7,
    string = 8,
    array = 9,
    u64 = 10,
    i64 = 11,
    f64 = 12,
};

// The tensor types that are supported; any other is refused while parsing.
enum class TensorType : uint32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q3_k = 11,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    iq4_nl = 20,
    bf16 = 30,
    mxfp4 = 39,
};

const char* value_type_name(ValueType type);
const char* tensor_type_name(TensorType type);

struct GgufValue {
    std::string_view key;
    ValueType type; // of the elements, if it is an array; never `array` itself
    bool is_array;
    uint64_t count; // 1 if it is no array
    std::span<const std::byte>
        payload;     // little-endian elements; a string is a u64 length and its bytes
    uint64_t offset; // of the payload in the file, for messages
};

struct GgufTensor {
    std::string_view name;
    TensorType type;
    int32_t dimension_count;
    std::array<uint64_t, limits::GGUF_DIMENSIONS_MAX>
        dimensions;                  // fastest first; unused ones are 1
    std::span<const std::byte> data; // whole blocks, row after row

    uint64_t columns() const { return dimensions[0]; }
    uint64_t rows() const { return dimensions[1] * dimensions[2] * dimensions[3]; }
    uint64_t row_bytes() const { return data.size() / rows(); }
};

class Gguf {
public:
    // Maps the file and parses its header.
    static Status open(const std::string& path, Gguf* file);
    // A header that somebody made for files of another format: their bytes follow it (padded to
    // whole pages, each), and the offsets of its tensors count from its own end.
    static Status join(std::span<const std::byte> header, const std::vector<FilePart>& files,
                       Gguf* file);
    // Parses bytes that outlive the result (tests, fuzzing).
    static Status parse(std::span<const std::byte> bytes, Gguf* file);

    uint32_t version() const { return version_; }
    uint64_t file_bytes() const { return bytes_.size(); }
    const FileIdentity& identity() const { return mapping_.identity(); } // zeros after parse()
    const std::vector<GgufValue>& values() const { return values_; }
    const std::vector<GgufTensor>& tensors() const { return tensors_; }
    const GgufValue* find(std::string_view key) const;
    const GgufTensor* tensor(std::string_view name) const;

    // Typed reading. A missing key leaves *result as it is and is no error: ask `find` where that
    // matters. A value of another type, or outside [minimum, maximum], is an error that names the
    // key.
    Status integer(std::string_view key, int64_t minimum, int64_t maximum, int64_t* result) const;
    Status number(std::string_view key, double* result) const; // f32 or f64, finite
    Status boolean(std::string_view key, bool* result) const;
    Status string(std::string_view key, std::string_view* result) const;
    Status strings(std::string_view key, std::vector<std::string_view>* result) const;
    Status integers(std::string_view key, std::vector<int64_t>* result) const;

private:
    friend class GgufParser;

    FileMapping mapping_; // empty after parse()
    std::span<const std::byte> bytes_;
    uint32_t version_ = 0;
    std::vector<GgufValue> values_;   // in file order
    std::vector<GgufTensor> tensors_; // in file order
    std::vector<uint32_t> values_by_key_;
    std::vector<uint32_t> tensors_by_name_;
};

// "<0x41>" -> 0x41. Exactly two hexadecimal digits; anything else is false.
bool parse_byte_token(std::string_view token, uint8_t* byte);

// Readers of one element of a value; the caller has looked at its type.
int64_t gguf_integer(ValueType type, const std::byte* element);
double gguf_number(ValueType type, const std::byte* element);
bool gguf_is_integer(ValueType type);
uint64_t gguf_element_bytes(ValueType type); // 0 for strings and arrays
std::vector<std::string_view> gguf_strings(const GgufValue& value);

} // namespace sublimate

// A reader of GGUF files, versions 2 and 3 (the format's specification: ggml, docs/gguf.md), whole
// or in parts. Nothing in the file is trusted: sizes are added and multiplied only through
// checked.h, every count is bounded by the bytes that are left, and a value can be read only as the
// type it was declared with. Views point into the file's bytes.
//
// defines: ValueType, TensorType, TensorTypes, OtherType, find_other_type, find_other_format,
// GgufValue, GgufTensor, Gguf, parse_byte_token, printable
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../check.h"
#include "../limits.h"
#include "memory.h"
#include "status.h"

namespace sublimate {

struct PackedFile; // packed_file.h

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

// The tensor types that are supported.
enum class TensorType : uint32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q2_k = 10,
    q3_k = 11,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    iq4_nl = 20,
    iq4_xs = 23,
    bf16 = 30,
    mxfp4 = 39,
};

// Which types a file may have: to serve it, or to look at what it is.
enum class TensorTypes : int32_t { supported = 0, any = 1 };

// A type that the format has and nothing here computes with.
struct OtherType {
    uint32_t number;
    const char* name;
    uint64_t block_elements;
    uint64_t block_bytes;
};

bool is_supported(TensorType type);
const OtherType* find_other_type(uint32_t number); // nullptr: not known either

// What a file is that is no GGUF file, and what to do about it; nullptr: not known.
const char* find_other_format(std::span<const std::byte> bytes);

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
    std::span<const std::byte> data; // whole blocks, row after row; none in a packed file
    uint64_t source_bytes = 0;       // of the data, there or not

    uint64_t columns() const { return dimensions[0]; }
    uint64_t rows() const { return dimensions[1] * dimensions[2] * dimensions[3]; }
    uint64_t row_bytes() const { return data.size() / rows(); }
};

class Gguf {
public:
    // Maps the file and parses its header; of a model in parts, all of them, whichever is named,
    // and of a packed file (packed_file.h), that of its source. With TensorTypes::any data of types
    // that nobody knows is empty.
    static Status open(const std::string& path, Gguf* file,
                       TensorTypes types = TensorTypes::supported);
    // A header that somebody made for files of another format: their bytes follow it (padded to
    // whole pages, each), and the offsets of its tensors count from its own end.
    static Status join(std::span<const std::byte> header, const std::vector<FilePart>& files,
                       Gguf* file);
    // Parses bytes that outlive the result (tests, fuzzing).
    static Status parse(std::span<const std::byte> bytes, Gguf* file,
                        TensorTypes types = TensorTypes::supported);

    uint32_t version() const { return version_; }
    uint64_t file_bytes() const;   // of all parts
    FileIdentity identity() const; // likewise, mixed; zeros after parse()
    size_t part_count() const { return 1 + parts_.size(); }
    // The bytes of an opened file, for who needs them for longer; null after parse().
    const std::shared_ptr<const FileMapping>& mapping() const { return mapping_; }
    const PackedFile* packed() const { return packed_.get(); } // null: it is not
    const std::vector<GgufValue>& values() const { return values_; }
    const std::vector<GgufTensor>& tensors() const { return tensors_; }
    const GgufValue* find(std::string_view key) const;
    const GgufTensor* tensor(std::string_view name) const;

    // Typed reading. A missing key leaves *result as it is and is no error: ask `find` where that
    // matters. A value of another type, or outside [minimum, maximum], is an error that names the
    // key. Writers differ: where one number is wanted it may be of any type that holds it, and an
    // array of equal ones, as of all layers.
    Status integer(std::string_view key, int64_t minimum, int64_t maximum, int64_t* result) const;
    Status number(std::string_view key, double* result) const; // finite
    Status boolean(std::string_view key, bool* result) const;  // or 0 or 1
    Status string(std::string_view key, std::string_view* result) const;
    Status strings(std::string_view key, std::vector<std::string_view>* result) const;
    Status integers(std::string_view key, std::vector<int64_t>* result) const;

private:
    Status one_element(const GgufValue& value, const char* wanted, const std::byte** element) const;

    friend class GgufParser;
    friend class GgufParts;

    // Of an opened file: what is read of it here is copied, for another process may write into it
    // or cut it short at any time.
    static Status parse_copy(FileMapping* mapping, Gguf* file, TensorTypes types);
    using Fetch = std::function<Status(uint64_t bytes)>; // before so many are looked at
    static Status parse_with(const Fetch& fetch, std::span<const std::byte> bytes, Gguf* file,
                             TensorTypes types);

    // By name. The name that two tensors have; empty: none.
    std::string_view index_tensors();

    std::shared_ptr<const FileMapping> mapping_;            // null after parse()
    std::vector<std::shared_ptr<const FileMapping>> parts_; // those after the first
    std::shared_ptr<const PackedFile> packed_;
    std::span<const std::byte> bytes_;
    uint32_t version_ = 0;
    std::vector<GgufValue> values_;   // in file order
    std::vector<GgufTensor> tensors_; // in file order, part after part
    std::vector<uint32_t> values_by_key_;
    std::vector<uint32_t> tensors_by_name_;
};

// "<0x41>" -> 0x41. Exactly two hexadecimal digits; anything else is false.
bool parse_byte_token(std::string_view token, uint8_t* byte);

// A name out of a file for a message: quoted, on one line, of a bounded length.
std::string printable(std::string_view name);

// Readers of one element of a value; the caller has looked at its type.
int64_t gguf_integer(ValueType type, const std::byte* element);
double gguf_number(ValueType type, const std::byte* element);
bool gguf_is_integer(ValueType type);
uint64_t gguf_element_bytes(ValueType type); // 0 for strings and arrays
std::vector<std::string_view> gguf_strings(const GgufValue& value);

} // namespace sublimate

// Typed reading of a parsed GGUF file.
#include "gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace sublimate {

const char* value_type_name(ValueType type) {
    switch (type) {
    case ValueType::u8:
        return "uint8";
    case ValueType::i8:
        return "int8";
    case ValueType::u16:
        return "uint16";
    case ValueType::i16:
        return "int16";
    case ValueType::u32:
        return "uint32";
    case ValueType::i32:
        return "int32";
    case ValueType::f32:
        return "float32";
    case ValueType::boolean:
        return "bool";
    case ValueType::string:
        return "string";
    case ValueType::array:
        return "array";
    case ValueType::u64:
        return "uint64";
    case ValueType::i64:
        return "int64";
    case ValueType::f64:
        return "float64";
    }
    return "unknown";
}

const char* tensor_type_name(TensorType type) {
    switch (type) {
    case TensorType::f32:
        return "F32";
    case TensorType::f16:
        return "F16";
    case TensorType::q4_0:
        return "Q4_0";
    case TensorType::q4_1:
        return "Q4_1";
    case TensorType::q5_0:
        return "Q5_0";
    case TensorType::q5_1:
        return "Q5_1";
    case TensorType::q8_0:
        return "Q8_0";
    case TensorType::iq4_nl:
        return "IQ4_NL";
    case TensorType::iq4_xs:
        return "IQ4_XS";
    case TensorType::mxfp4:
        return "MXFP4";
    case TensorType::q2_k:
        return "Q2_K";
    case TensorType::q3_k:
        return "Q3_K";
    case TensorType::q4_k:
        return "Q4_K";
    case TensorType::q5_k:
        return "Q5_K";
    case TensorType::q6_k:
        return "Q6_K";
    case TensorType::bf16:
        return "BF16";
    }
    const OtherType* other = find_other_type(static_cast<uint32_t>(type));
    return other == nullptr ? "unknown" : other->name;
}

std::string printable(std::string_view name) {
    constexpr size_t SHOWN_MAX = limits::GGUF_TENSOR_NAME_BYTES_MAX;
    std::string text;
    for (char c : name.substr(0, SHOWN_MAX)) text += c >= ' ' && c <= '~' ? c : '?';
    return "'" + text + (name.size() > SHOWN_MAX ? "...'" : "'");
}

uint64_t gguf_element_bytes(ValueType type) {
    switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
        return 1;
    case ValueType::u16:
    case ValueType::i16:
        return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
        return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64:
        return 8;
    case ValueType::string:
    case ValueType::array:
        return 0;
    }
    return 0;
}

bool gguf_is_integer(ValueType type) {
    switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::u16:
    case ValueType::i16:
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::u64:
    case ValueType::i64:
        return true;
    default:
        return false;
    }
}

namespace {

template <class Number>
Number load(const std::byte* element) {
    Number number;
    std::memcpy(&number, element, sizeof number);
    return number;
}

} // namespace

int64_t gguf_integer(ValueType type, const std::byte* element) {
    switch (type) {
    case ValueType::u8:
        return load<uint8_t>(element);
    case ValueType::i8:
        return load<int8_t>(element);
    case ValueType::u16:
        return load<uint16_t>(element);
    case ValueType::i16:
        return load<int16_t>(element);
    case ValueType::u32:
        return load<uint32_t>(element);
    case ValueType::i32:
        return load<int32_t>(element);
    case ValueType::i64:
        return load<int64_t>(element);
    case ValueType::u64:
        // No setting is that large; saturating keeps it out of every range.
        return static_cast<int64_t>(
            std::min<uint64_t>(load<uint64_t>(element), static_cast<uint64_t>(INT64_MAX)));
    default:
        CHECK(false);
        return 0;
    }
}

double gguf_number(ValueType type, const std::byte* element) {
    CHECK(type == ValueType::f32 || type == ValueType::f64);
    return type == ValueType::f32 ? load<float>(element) : load<double>(element);
}

std::vector<std::string_view> gguf_strings(const GgufValue& value) {
    CHECK(value.type == ValueType::string);
    std::vector<std::string_view> strings;
    strings.reserve(value.count);
    const std::byte* cursor = value.payload.data();
    for (uint64_t i = 0; i < value.count; i++) { // the parser has walked these lengths already
        uint64_t length = load<uint64_t>(cursor);
        cursor += sizeof length;
        strings.emplace_back(reinterpret_cast<const char*>(cursor), length);
        cursor += length;
    }
    return strings;
}

const GgufValue* Gguf::find(std::string_view key) const {
    auto found = std::lower_bound(
        values_by_key_.begin(), values_by_key_.end(), key,
        [&](uint32_t index, std::string_view wanted) { return values_[index].key < wanted; });
    if (found == values_by_key_.end() || values_[*found].key != key) return nullptr;
    return &values_[*found];
}

std::string_view Gguf::index_tensors() {
    auto& index = tensors_by_name_;
    index.resize(tensors_.size());
    std::iota(index.begin(), index.end(), uint32_t{0});
    std::sort(index.begin(), index.end(),
              [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
    for (size_t i = 1; i < index.size(); i++)
        if (tensors_[index[i - 1]].name == tensors_[index[i]].name) return tensors_[index[i]].name;
    return {};
}

const GgufTensor* Gguf::tensor(std::string_view name) const {
    auto found = std::lower_bound(
        tensors_by_name_.begin(), tensors_by_name_.end(), name,
        [&](uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
    if (found == tensors_by_name_.end() || tensors_[*found].name != name) return nullptr;
    return &tensors_[*found];
}

namespace {

Status wrong_type(const GgufValue& value, const char* wanted) {
    return Status::error("key '" + std::string(value.key) + "' (at byte " +
                         std::to_string(value.offset) + ") must be " + wanted + ", not " +
                         (value.is_array ? "an array of " : "") + value_type_name(value.type));
}

} // namespace

// The one of a value, or of an array of equal ones.
Status Gguf::one_element(const GgufValue& value, const char* wanted,
                         const std::byte** element) const {
    const uint64_t size = gguf_element_bytes(value.type);
    if (size == 0 || value.count == 0) return wrong_type(value, wanted);
    *element = value.payload.data();
    for (uint64_t i = 1; i < value.count; i++)
        if (std::memcmp(*element, *element + i * size, size) != 0)
            return Status::error("key '" + std::string(value.key) + "' (at byte " +
                                 std::to_string(value.offset) +
                                 ") is an array of different values, which is not supported");
    return Status::success();
}

Status Gguf::integer(std::string_view key, int64_t minimum, int64_t maximum,
                     int64_t* result) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return Status::success();
    const std::byte* element = nullptr;
    RETURN_IF_ERROR(one_element(*value, "an integer", &element));
    int64_t number = 0;
    if (gguf_is_integer(value->type)) {
        number = gguf_integer(value->type, element);
    } else {
        constexpr double WHOLE_MAX = 9007199254740992.0; // 2^53: up to there each is exact
        if (value->type == ValueType::boolean) return wrong_type(*value, "an integer");
        double exact = gguf_number(value->type, element);
        if (!(std::fabs(exact) <= WHOLE_MAX) || exact != std::floor(exact))
            return wrong_type(*value, "an integer");
        number = static_cast<int64_t>(exact);
    }
    if (number < minimum || number > maximum)
        return Status::error("key '" + std::string(key) + "' (at byte " +
                             std::to_string(value->offset) + ") is " + std::to_string(number) +
                             ", outside " + std::to_string(minimum) + " to " +
                             std::to_string(maximum));
    *result = number;
    return Status::success();
}

Status Gguf::number(std::string_view key, double* result) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return Status::success();
    const std::byte* element = nullptr;
    RETURN_IF_ERROR(one_element(*value, "a number", &element));
    if (value->type == ValueType::boolean) return wrong_type(*value, "a number");
    double number = gguf_is_integer(value->type)
                        ? static_cast<double>(gguf_integer(value->type, element))
                        : gguf_number(value->type, element);
    if (!std::isfinite(number))
        return Status::error("key '" + std::string(key) + "' (at byte " +
                             std::to_string(value->offset) + ") is not finite");
    *result = number;
    return Status::success();
}

Status Gguf::boolean(std::string_view key, bool* result) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return Status::success();
    if (!value->is_array && value->type == ValueType::boolean) {
        *result = load<uint8_t>(value->payload.data()) != 0;
        return Status::success();
    }
    if (value->is_array || !gguf_is_integer(value->type)) return wrong_type(*value, "a bool");
    int64_t number = gguf_integer(value->type, value->payload.data());
    if (number != 0 && number != 1) return wrong_type(*value, "a bool");
    *result = number == 1;
    return Status::success();
}

Status Gguf::string(std::string_view key, std::string_view* result) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return Status::success();
    if (value->is_array || value->type != ValueType::string) return wrong_type(*value, "a string");
    *result = gguf_strings(*value).front();
    return Status::success();
}

Status Gguf::strings(std::string_view key, std::vector<std::string_view>* result) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return Status::success();
    if (!value->is_array || value->type != ValueType::string)
        return wrong_type(*value, "an array of strings");
    *result = gguf_strings(*value);
    return Status::success();
}

Status Gguf::integers(std::string_view key, std::vector<int64_t>* result) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return Status::success();
    if (!value->is_array || !gguf_is_integer(value->type))
        return wrong_type(*value, "an array of integers");
    uint64_t element_bytes = gguf_element_bytes(value->type);
    result->clear();
    for (uint64_t i = 0; i < value->count; i++)
        result->push_back(gguf_integer(value->type, value->payload.data() + i * element_bytes));
    return Status::success();
}

bool parse_byte_token(std::string_view token, uint8_t* byte) {
    constexpr std::string_view PREFIX = "<0x";
    if (token.size() != PREFIX.size() + 3 || token.substr(0, PREFIX.size()) != PREFIX ||
        token.back() != '>')
        return false;
    uint8_t value = 0;
    for (char c : token.substr(PREFIX.size(), 2)) {
        uint8_t digit = 0;
        if (c >= '0' && c <= '9')
            digit = static_cast<uint8_t>(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = static_cast<uint8_t>(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            digit = static_cast<uint8_t>(c - 'A' + 10);
        else
            return false;
        value = static_cast<uint8_t>(value * 16 + digit);
    }
    *byte = value;
    return true;
}

} // namespace sublimate

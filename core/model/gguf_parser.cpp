// The walk over a GGUF header: version, counts, values, tensor table, then the checks that need all
// of it. One cursor, no recursion, no allocation larger than the file justifies.
#include <algorithm>
#include <cstring>

#include "checked.h"
#include "gguf.h"
#include "packed_file.h"

namespace sublimate {

namespace {

constexpr uint64_t STRING_BYTES_MIN = 8;  // a length
constexpr uint64_t VALUE_BYTES_MIN = 13;  // key length, type, one byte
constexpr uint64_t TENSOR_BYTES_MIN = 32; // name length, count, one dimension, type, offset
constexpr uint32_t DEFAULT_ALIGNMENT = 32;
constexpr uint64_t FETCHED_BYTES = 64 << 10; // at once
constexpr uint64_t FIRST_BYTES = 512;        // by which other formats are known
// No header is longer: its values, that one which nobody reads, tensors and keys.
constexpr uint64_t HEADER_BYTES_MAX =
    uint64_t{limits::GGUF_METADATA_BYTES_MAX} + uint64_t{limits::GGUF_UNREAD_BYTES_MAX} +
    uint64_t{limits::GGUF_TENSORS_MAX} * (limits::GGUF_TENSOR_NAME_BYTES_MAX + 64) +
    uint64_t{limits::GGUF_KEYS_MAX} * 1024;
constexpr uint32_t VERSION_MIN = 2;
constexpr uint32_t VERSION_MAX = 3;
constexpr uint32_t BIG_ENDIAN_VERSION = 0x03000000;
constexpr int64_t BYTE_TOKEN_TYPE = 6; // of tokenizer.ggml.token_type
constexpr int64_t MERGE_BYTES_MAX = 2 * int64_t{limits::TOKEN_BYTES_MAX} + 1;

struct BlockSize {
    uint64_t elements;
    uint64_t bytes;
};

bool block_size_of(uint32_t type, BlockSize* size) {
    switch (static_cast<TensorType>(type)) {
    case TensorType::f32:
        *size = {1, 4};
        return true;
    case TensorType::f16:
    case TensorType::bf16:
        *size = {1, 2};
        return true;
    case TensorType::q4_0:
        *size = {32, 18};
        return true;
    case TensorType::q4_1:
        *size = {32, 20};
        return true;
    case TensorType::q5_0:
        *size = {32, 22};
        return true;
    case TensorType::q5_1:
        *size = {32, 24};
        return true;
    case TensorType::q8_0:
        *size = {32, 34};
        return true;
    case TensorType::iq4_nl:
        *size = {32, 18};
        return true;
    case TensorType::mxfp4:
        *size = {32, 17};
        return true;
    case TensorType::iq4_xs:
        *size = {256, 136};
        return true;
    case TensorType::q2_k:
        *size = {256, 84};
        return true;
    case TensorType::q3_k:
        *size = {256, 110};
        return true;
    case TensorType::q4_k:
        *size = {256, 144};
        return true;
    case TensorType::q5_k:
        *size = {256, 176};
        return true;
    case TensorType::q6_k:
        *size = {256, 210};
        return true;
    }
    return false;
}

// Keys whose type is part of the format; a file that declares another one is refused, used or not.
struct KnownKey {
    const char* key;
    ValueType type;
    bool is_array;
    int64_t string_bytes_max; // 0: that of any
};

// A second, whole description of the tokenizer, which some files have.
constexpr const char* UNREAD_KEY = "tokenizer.huggingface.json";

constexpr KnownKey KNOWN_KEYS[] = {
    {"general.architecture", ValueType::string, false, limits::GGUF_TENSOR_NAME_BYTES_MAX},
    {"general.alignment", ValueType::u32, false, 0},
    {"tokenizer.ggml.model", ValueType::string, false, limits::GGUF_TENSOR_NAME_BYTES_MAX},
    {"tokenizer.ggml.pre", ValueType::string, false, limits::GGUF_TENSOR_NAME_BYTES_MAX},
    {"tokenizer.ggml.tokens", ValueType::string, true, limits::TOKEN_BYTES_MAX},
    {"tokenizer.ggml.merges", ValueType::string, true, MERGE_BYTES_MAX},
    {"tokenizer.ggml.scores", ValueType::f32, true, 0},
    {"tokenizer.ggml.token_type", ValueType::i32, true, 0},
    {"tokenizer.chat_template", ValueType::string, false, 0},
    {UNREAD_KEY, ValueType::string, false, limits::GGUF_UNREAD_BYTES_MAX},
    {PACKED_TEXT_KEY, ValueType::string, false, limits::GGUF_TEXT_BYTES_MAX},
};

} // namespace

bool is_supported(TensorType type) {
    BlockSize unused = {};
    return block_size_of(static_cast<uint32_t>(type), &unused);
}

class GgufParser {
public:
    // small: where the data of a packed file's tensors lies, if not beyond the weights; null:
    // behind the header.
    GgufParser(std::span<const std::byte> bytes, TensorTypes types, Gguf* file,
               const Gguf::Fetch& fetch, const std::span<const std::byte>* small = nullptr)
        : bytes_(bytes), types_(types), file_(*file), fetch_(fetch), small_(small) {}

    Status parse() {
        RETURN_IF_ERROR(parse_header());
        for (uint64_t i = 0; i < value_count_; i++) RETURN_IF_ERROR(parse_value());
        RETURN_IF_ERROR(index_values());
        RETURN_IF_ERROR(check_vocabulary());
        RETURN_IF_ERROR(read_alignment());
        for (uint64_t i = 0; i < tensor_count_; i++) RETURN_IF_ERROR(parse_tensor());
        RETURN_IF_ERROR(index_tensors());
        return place_tensors();
    }

private:
    uint64_t left() const { return bytes_.size() - position_; }

    // Before the next so many bytes are looked at, which are there. False: `fail` says why not.
    bool reach(uint64_t count) {
        const uint64_t end = position_ + count;
        if (end <= fetched_) return true;
        const uint64_t wanted = (end + FETCHED_BYTES - 1) / FETCHED_BYTES * FETCHED_BYTES;
        if (end > HEADER_BYTES_MAX)
            lost_ = Status::error("malformed GGUF file: its metadata is larger than that of any "
                                  "model");
        else
            lost_ = fetch_(std::min<uint64_t>(wanted, bytes_.size()));
        if (lost_.ok()) fetched_ = wanted;
        return lost_.ok();
    }

    Status fail(const std::string& what) const {
        if (!lost_.ok()) return lost_;
        return Status::error("malformed GGUF file: " + what + " (at byte " +
                             std::to_string(position_) + " of " + std::to_string(bytes_.size()) +
                             ")");
    }

    template <class Number>
    bool read(Number* number) {
        if (left() < sizeof(Number) || !reach(sizeof(Number))) return false;
        std::memcpy(number, bytes_.data() + position_, sizeof(Number));
        position_ += sizeof(Number);
        return true;
    }

    bool read_string(uint64_t bytes_max, std::string_view* text) {
        uint64_t length = 0;
        if (!read(&length) || length > left() || length > bytes_max || !reach(length)) return false;
        *text = {reinterpret_cast<const char*>(bytes_.data() + position_), length};
        position_ += length;
        return true;
    }

    Status parse_header() {
        file_.bytes_ = bytes_;
        if (!reach(std::min<uint64_t>(FIRST_BYTES, bytes_.size()))) return lost_;
        char magic[4] = {};
        if (!read(&magic)) return fail("shorter than its magic number");
        if (std::memcmp(magic, "GGUF", sizeof magic) != 0)
            return Status::error("not a GGUF file: " + other_format());
        if (!read(&file_.version_)) return fail("no version");
        if (file_.version_ == BIG_ENDIAN_VERSION)
            return fail("its numbers are big-endian, which is not supported");
        if (file_.version_ < VERSION_MIN || file_.version_ > VERSION_MAX)
            return fail("version " + std::to_string(file_.version_) +
                        " is not supported (2 and 3 are, little-endian)");
        if (!read(&tensor_count_) || !read(&value_count_)) return fail("no counts");
        if (tensor_count_ > limits::GGUF_TENSORS_MAX || tensor_count_ > left() / TENSOR_BYTES_MIN)
            return fail(std::to_string(tensor_count_) + " tensors do not fit");
        if (value_count_ > limits::GGUF_KEYS_MAX || value_count_ > left() / VALUE_BYTES_MIN)
            return fail(std::to_string(value_count_) + " keys do not fit");
        file_.values_.reserve(value_count_);
        file_.tensors_.reserve(tensor_count_);
        return Status::success();
    }

    // Integers may be of any width.
    static bool fits(const KnownKey& known, const GgufValue& value) {
        return known.is_array == value.is_array &&
               (known.type == value.type ||
                (gguf_is_integer(known.type) && gguf_is_integer(value.type)));
    }

    std::string other_format() const {
        const char* other = find_other_format(bytes_);
        return other == nullptr ? "it does not start with 'GGUF'" : other;
    }

    Status parse_value() {
        GgufValue value = {};
        uint32_t type = 0;
        if (!read_string(limits::GGUF_KEY_BYTES_MAX, &value.key)) return fail("bad key length");
        if (value.key.empty()) return fail("empty key");
        if (!read(&type)) return fail("no type for key " + printable(value.key));
        value.count = 1;
        if (static_cast<ValueType>(type) == ValueType::array) {
            value.is_array = true;
            if (!read(&type) || !read(&value.count))
                return fail("array of key " + printable(value.key) + " has no header");
        }
        value.type = static_cast<ValueType>(type);
        value.offset = position_;
        const KnownKey* known = nullptr;
        for (const KnownKey& entry : KNOWN_KEYS)
            if (value.key == entry.key) known = &entry;
        if (known != nullptr && !fits(*known, value))
            return fail("key " + printable(value.key) + " must be " +
                        (known->is_array ? "an array of " : "a ") + value_type_name(known->type));
        int64_t string_limit = known != nullptr ? known->string_bytes_max : 0;
        RETURN_IF_ERROR(skip_payload(value, string_limit));
        value.payload = bytes_.subspan(value.offset, position_ - value.offset);
        RETURN_IF_ERROR(count_payload(value));
        position_ = value.offset;
        if (!reach(value.payload.size())) return lost_;
        position_ += value.payload.size();
        file_.values_.push_back(value);
        return Status::success();
    }

    // What all of a file's values are read into has to fit: a sparse file of a few KB may claim
    // them to be terabytes.
    Status count_payload(const GgufValue& value) {
        if (value.key == UNREAD_KEY || value.key == PACKED_TEXT_KEY) return Status::success();
        payload_bytes_ += value.payload.size(); // of mapped memory, so it cannot wrap
        if (value.is_array) elements_ += value.count;
        if (payload_bytes_ > uint64_t{limits::GGUF_METADATA_BYTES_MAX} ||
            elements_ > uint64_t{limits::GGUF_ELEMENTS_MAX})
            return fail("with key " + printable(value.key) +
                        " its metadata is larger than that of "
                        "any model");
        return Status::success();
    }

    // Moves past a value's payload and checks that all of it is there.
    Status skip_payload(const GgufValue& value, int64_t string_limit) {
        if (value.type == ValueType::string) {
            const auto limit = static_cast<uint64_t>(
                string_limit > 0 ? string_limit : limits::GGUF_STRING_BYTES_MAX);
            if (value.count > left() / STRING_BYTES_MIN)
                return fail("key " + printable(value.key) + " claims " +
                            std::to_string(value.count) + " strings, more than the file holds");
            for (uint64_t i = 0; i < value.count; i++) {
                std::string_view text;
                if (!read_string(limit, &text))
                    return fail("string " + std::to_string(i) + " of key " + printable(value.key) +
                                " is too long or runs past the end");
            }
            return Status::success();
        }
        uint64_t element_bytes = gguf_element_bytes(value.type);
        if (element_bytes == 0)
            return fail("key " + printable(value.key) + " has the unsupported type " +
                        std::to_string(static_cast<uint32_t>(value.type)));
        uint64_t payload_bytes = 0;
        if (!checked_multiply(value.count, element_bytes, &payload_bytes) || payload_bytes > left())
            return fail("key " + printable(value.key) + " claims " + std::to_string(value.count) +
                        " elements, more than the file holds");
        position_ += payload_bytes;
        return Status::success();
    }

    Status index_values() {
        const auto& values = file_.values_;
        auto& index = file_.values_by_key_;
        index.resize(values.size());
        for (uint32_t i = 0; i < index.size(); i++) index[i] = i;
        std::sort(index.begin(), index.end(),
                  [&](uint32_t a, uint32_t b) { return values[a].key < values[b].key; });
        for (size_t i = 1; i < index.size(); i++)
            if (values[index[i - 1]].key == values[index[i]].key)
                return fail("key " + printable(values[index[i]].key) + " appears twice");
        return Status::success();
    }

    // Tokens that stand for a byte are written "<0xNN>"; a vocabulary that says otherwise is
    // refused here, once.
    Status check_vocabulary() const {
        const GgufValue* tokens = file_.find("tokenizer.ggml.tokens");
        const GgufValue* types = file_.find("tokenizer.ggml.token_type");
        const GgufValue* scores = file_.find("tokenizer.ggml.scores");
        if (tokens == nullptr) return Status::success();
        if (tokens->count > limits::VOCABULARY_MAX)
            return fail("a vocabulary of " + std::to_string(tokens->count) +
                        " tokens is not supported");
        for (const GgufValue* other : {types, scores})
            if (other != nullptr && other->count != tokens->count)
                return fail("key " + printable(other->key) + " has " +
                            std::to_string(other->count) + " entries for " +
                            std::to_string(tokens->count) + " tokens");
        if (types == nullptr) return Status::success();
        std::vector<std::string_view> names = gguf_strings(*tokens);
        const uint64_t type_bytes = gguf_element_bytes(types->type);
        for (size_t i = 0; i < names.size(); i++) {
            uint8_t byte = 0;
            int64_t type = gguf_integer(types->type, types->payload.data() + i * type_bytes);
            if (type == BYTE_TOKEN_TYPE && !parse_byte_token(names[i], &byte))
                return fail("token " + std::to_string(i) + ", " + printable(names[i]) +
                            ", is declared a byte but is not <0xNN>");
        }
        return Status::success();
    }

    Status read_alignment() {
        const GgufValue* value = file_.find("general.alignment");
        int64_t alignment =
            value == nullptr ? DEFAULT_ALIGNMENT : gguf_integer(value->type, value->payload.data());
        if (alignment <= 0 || alignment > limits::GGUF_ALIGNMENT_MAX ||
            (alignment & (alignment - 1)) != 0)
            return fail("general.alignment " + std::to_string(alignment) + " is no power of two");
        alignment_ = static_cast<uint64_t>(alignment);
        return Status::success();
    }

    Status parse_tensor() {
        GgufTensor tensor = {};
        if (!read_string(limits::GGUF_TENSOR_NAME_BYTES_MAX, &tensor.name))
            return fail("bad tensor name length");
        if (tensor.name.empty()) return fail("empty tensor name");
        std::string name = "tensor " + printable(tensor.name);
        uint32_t dimension_count = 0;
        if (!read(&dimension_count)) return fail(name + " has no dimension count");
        if (dimension_count == 0 || dimension_count > limits::GGUF_DIMENSIONS_MAX)
            return fail(name + " has " + std::to_string(dimension_count) + " dimensions");
        tensor.dimension_count = static_cast<int32_t>(dimension_count);
        tensor.dimensions.fill(1);
        uint64_t elements = 1;
        for (uint32_t d = 0; d < dimension_count; d++) {
            if (!read(&tensor.dimensions[d])) return fail(name + " has too few dimensions");
            if (tensor.dimensions[d] == 0) return fail(name + " has a dimension of zero");
            if (!checked_multiply(elements, tensor.dimensions[d], &elements))
                return fail(name + " is larger than any file");
        }
        uint32_t type = 0;
        uint64_t offset = 0;
        if (!read(&type) || !read(&offset)) return fail(name + " has no type and offset");
        BlockSize block = {};
        RETURN_IF_ERROR(find_block(name, type, &block));
        tensor.type = static_cast<TensorType>(type);
        if (tensor.dimensions[0] % block.elements != 0)
            return fail(name + " has rows of " + std::to_string(tensor.dimensions[0]) +
                        " elements, which are no whole blocks of " + tensor_type_name(tensor.type));
        uint64_t size = 0;
        if (!checked_multiply(elements / block.elements, block.bytes, &size) ||
            (small_ == nullptr && size > bytes_.size()))
            return fail(name + " is larger than the file");
        if (small_ == nullptr && offset % alignment_ != 0)
            return fail(name + " lies at an unaligned offset");
        tensor.source_bytes = size;
        file_.tensors_.push_back(tensor);
        ranges_.push_back({offset, size});
        return Status::success();
    }

    // Of a type that nobody knows no size is known: its data is empty.
    Status find_block(const std::string& name, uint32_t type, BlockSize* block) const {
        if (block_size_of(type, block)) return Status::success();
        const OtherType* other = find_other_type(type);
        if (types_ == TensorTypes::any) {
            *block = other == nullptr ? BlockSize{1, 0}
                                      : BlockSize{other->block_elements, other->block_bytes};
            return Status::success();
        }
        return fail(name + " has type " + std::to_string(type) +
                    (other == nullptr ? "" : std::string(" (") + other->name + ")") +
                    "; supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS, "
                    "MXFP4, Q2_K, Q3_K, Q4_K, Q5_K and Q6_K");
    }

    Status index_tensors() {
        std::string_view twice = file_.index_tensors();
        return twice.empty() ? Status::success()
                             : fail("tensor " + printable(twice) + " appears twice");
    }

    // Of a packed file: what is not there has no data.
    Status place_small() {
        for (size_t i = 0; i < ranges_.size(); i++) {
            const Range& range = ranges_[i];
            uint64_t end = 0;
            if (range.offset == DETACHED) continue;
            if (!checked_add(range.offset, range.size, &end) || end > small_->size())
                return fail("tensor " + printable(file_.tensors_[i].name) + " lies outside");
            file_.tensors_[i].data = small_->subspan(range.offset, range.size);
        }
        return Status::success();
    }

    Status place_tensors() {
        if (small_ != nullptr) return place_small();
        uint64_t data_begin = 0;
        if (!checked_align(position_, alignment_, &data_begin)) return fail("no room for data");
        for (size_t i = 0; i < ranges_.size(); i++) {
            uint64_t begin = 0;
            uint64_t end = 0;
            if (!checked_add(data_begin, ranges_[i].offset, &begin) ||
                !checked_add(begin, ranges_[i].size, &end) || end > bytes_.size())
                return fail("tensor " + printable(file_.tensors_[i].name) +
                            " lies outside the file; the file may be cut short");
            file_.tensors_[i].data = bytes_.subspan(begin, ranges_[i].size);
        }
        std::vector<uint32_t> order = file_.tensors_by_name_;
        std::sort(order.begin(), order.end(),
                  [&](uint32_t a, uint32_t b) { return ranges_[a].offset < ranges_[b].offset; });
        for (size_t i = 1; i < order.size(); i++) {
            const Range& before = ranges_[order[i - 1]];
            // No wrap: place above showed that the sum lies inside the file.
            if (before.offset + before.size > ranges_[order[i]].offset)
                return fail("tensors " + printable(file_.tensors_[order[i - 1]].name) + " and " +
                            printable(file_.tensors_[order[i]].name) + " overlap");
        }
        return Status::success();
    }

    struct Range {
        uint64_t offset; // within the data section
        uint64_t size;
    };

    std::span<const std::byte> bytes_;
    const TensorTypes types_;
    Gguf& file_;
    const Gguf::Fetch& fetch_;
    const std::span<const std::byte>* small_;
    uint64_t fetched_ = 0;
    Status lost_ = Status::success(); // why bytes that are there cannot be looked at
    uint64_t position_ = 0;
    uint64_t tensor_count_ = 0;
    uint64_t value_count_ = 0;
    uint64_t alignment_ = DEFAULT_ALIGNMENT;
    uint64_t payload_bytes_ = 0; // of values that somebody reads
    uint64_t elements_ = 0;      // of their arrays
    std::vector<Range> ranges_;
};

namespace {

// The tensors of a packed file are nowhere in it as its table says, but no panel has more than
// eight elements in a byte.
Status check_elements(const std::vector<GgufTensor>& tensors, uint64_t file_bytes) {
    constexpr uint64_t ELEMENTS_PER_BYTE_MAX = 8;
    uint64_t elements = 0;
    for (const GgufTensor& tensor : tensors)
        if (!checked_add(elements, tensor.columns() * tensor.rows(), &elements) ||
            elements / ELEMENTS_PER_BYTE_MAX > file_bytes)
            return Status::error("tensor " + printable(tensor.name) + " is larger than the file");
    return Status::success();
}

} // namespace

Status Gguf::parse(std::span<const std::byte> bytes, Gguf* file, TensorTypes types) {
    return parse_with([](uint64_t) { return Status::success(); }, bytes, file, types);
}

Status Gguf::parse_copy(FileMapping* mapping, Gguf* file, TensorTypes types) {
    Status status = parse_with([=](uint64_t bytes) { return mapping->copy_front(bytes); },
                               mapping->bytes(), file, types);
    mapping->close_file();
    return status;
}

Status Gguf::parse_with(const Fetch& fetch, std::span<const std::byte> bytes, Gguf* file,
                        TensorTypes types) {
    Gguf fresh;
    RETURN_IF_ERROR(fetch(std::min<uint64_t>(FIRST_BYTES, bytes.size())));
    if (is_packed(bytes)) {
        auto packed = std::make_shared<PackedFile>();
        RETURN_IF_ERROR(read_packed(bytes, packed.get(), fetch));
        const Fetch there = [](uint64_t) { return Status::success(); };
        RETURN_IF_ERROR(GgufParser(packed->metadata, types, &fresh, there, &packed->small).parse());
        RETURN_IF_ERROR(check_elements(fresh.tensors_, bytes.size()));
        fresh.bytes_ = bytes;
        fresh.packed_ = std::move(packed);
    } else {
        RETURN_IF_ERROR(GgufParser(bytes, types, &fresh, fetch).parse());
    }
    *file = std::move(fresh);
    return Status::success();
}

Status Gguf::join(std::span<const std::byte> header, const std::vector<FilePart>& files,
                  Gguf* file) {
    if (header.empty()) return Status::error("not a GGUF file: it is empty");
    auto mapping = std::make_shared<FileMapping>();
    RETURN_IF_ERROR(FileMapping::join(header, files, mapping.get()));
    RETURN_IF_ERROR(parse(mapping->bytes(), file));
    file->mapping_ = std::move(mapping);
    return Status::success();
}

} // namespace sublimate

// The GGUF reader against files that are wrong in every way known to have hurt another reader, and
// against a file cut at every byte.
#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <vector>

#include "core/retry.h"
#include "gguf_writer.h"
#include "test.h"

namespace {

using namespace sublimate;
using sublimate::test::GgufBytes;

std::vector<std::byte> zeros(size_t count) {
    return std::vector<std::byte>(count);
}

GgufBytes valid() {
    GgufBytes file;
    file.text("general.architecture", "llama");
    file.value("general.alignment", ValueType::u32, uint32_t{32});
    file.value("llama.block_count", ValueType::u32, uint32_t{1});
    file.value("llama.norm", ValueType::f32, 1e-5f);
    file.value("tokenizer.ggml.add_bos_token", ValueType::boolean, uint8_t{1});
    file.texts("tokenizer.ggml.tokens", {"a", "b", "<0x41>"});
    file.numbers<int32_t>("tokenizer.ggml.token_type", ValueType::i32, {1, 1, 6});
    file.numbers<float>("tokenizer.ggml.scores", ValueType::f32, {0, 0, 0});
    file.tensor({"one", TensorType::f32, {4, 2}, zeros(32)});
    file.tensor({"two", TensorType::q4_1, {64, 3}, zeros(120)});
    return file;
}

std::string error_of(const std::vector<std::byte>& bytes) {
    // A copy of exactly the size, so that a sanitizer sees a read past the end.
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    copy.shrink_to_fit();
    Gguf file;
    return Gguf::parse(copy, &file).message;
}

bool refused(const std::vector<std::byte>& bytes, const std::string& why) {
    std::string message = error_of(bytes);
    if (message.find(why) != std::string::npos) return true;
    std::printf("the message is '%s', wanted '%s'\n", message.c_str(), why.c_str());
    return false;
}

} // namespace

TEST(valid_file_is_read) {
    std::vector<std::byte> bytes = valid().bytes();
    Gguf file;
    EXPECT(Gguf::parse(bytes, &file).ok());
    EXPECT_EQ(file.version(), 3u);
    EXPECT_EQ(file.values().size(), 8u);
    int64_t layers = 0;
    EXPECT(file.integer("llama.block_count", 0, 10, &layers).ok());
    EXPECT_EQ(layers, 1);
    double norm = 0.0;
    EXPECT(file.number("llama.norm", &norm).ok());
    EXPECT_NEAR(norm, 1e-5, 1e-9);
    bool begin = false;
    EXPECT(file.boolean("tokenizer.ggml.add_bos_token", &begin).ok());
    EXPECT(begin);
    std::vector<std::string_view> tokens;
    EXPECT(file.strings("tokenizer.ggml.tokens", &tokens).ok());
    EXPECT_EQ(tokens.size(), 3u);
    EXPECT_EQ(tokens[2], "<0x41>");
    std::vector<int64_t> types;
    EXPECT(file.integers("tokenizer.ggml.token_type", &types).ok());
    EXPECT_EQ(types[2], 6);
    const GgufTensor* two = file.tensor("two");
    EXPECT(two != nullptr && two->columns() == 64 && two->rows() == 3);
    EXPECT_EQ(two->data.size(), 120u);
    EXPECT(file.tensor("three") == nullptr && file.find("three") == nullptr);
}

TEST(version_2_is_read_and_others_are_not) {
    GgufBytes file = valid();
    for (uint32_t version : {0u, 1u, 2u, 3u, 4u, 0x03000000u}) {
        file.version = version;
        EXPECT_EQ(error_of(file.bytes()).empty(), version == 2 || version == 3);
    }
}

TEST(cut_at_every_byte) {
    std::vector<std::byte> bytes = valid().bytes();
    for (size_t length = 0; length < bytes.size(); length++) {
        std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(length));
        EXPECT(!error_of(cut).empty());
    }
    EXPECT(error_of(bytes).empty());
}

TEST(every_byte_changed_never_crashes) {
    const std::vector<std::byte> bytes = valid().bytes();
    int refusals = 0;
    for (size_t at = 0; at < bytes.size(); at++) {
        for (int change : {0x01, 0x80, 0xFF}) {
            std::vector<std::byte> changed = bytes;
            changed[at] ^= static_cast<std::byte>(change);
            refusals += !error_of(changed).empty();
        }
    }
    EXPECT(refusals > 300);
}

TEST(typed_reading_refuses_other_types) {
    std::vector<std::byte> bytes = valid().bytes();
    Gguf file;
    EXPECT(Gguf::parse(bytes, &file).ok());
    int64_t integer = 7;
    double number = 0.0;
    bool boolean = false;
    std::string_view text;
    std::vector<std::string_view> texts;
    std::vector<int64_t> integers;
    EXPECT(!file.integer("llama.norm", 0, 10, &integer).ok());
    EXPECT(!file.integer("tokenizer.ggml.token_type", 0, 10, &integer).ok());
    EXPECT(!file.integer("tokenizer.ggml.add_bos_token", 0, 10, &integer).ok());
    EXPECT(!file.integer("general.architecture", 0, 10, &integer).ok());
    EXPECT(!file.integer("llama.block_count", 2, 10, &integer).ok());
    EXPECT(!file.number("tokenizer.ggml.add_bos_token", &number).ok());
    EXPECT(!file.number("tokenizer.ggml.tokens", &number).ok());
    EXPECT(!file.boolean("llama.norm", &boolean).ok());
    EXPECT(!file.boolean("general.alignment", &boolean).ok());
    EXPECT(!file.string("tokenizer.ggml.tokens", &text).ok());
    EXPECT(!file.strings("general.architecture", &texts).ok());
    EXPECT(!file.integers("tokenizer.ggml.scores", &integers).ok());
    EXPECT(file.integer("absent", 0, 10, &integer).ok());
    EXPECT_EQ(integer, 7);
    std::string message = file.integer("llama.norm", 0, 10, &integer).message;
    EXPECT(message.find("'llama.norm'") != std::string::npos);
    EXPECT(message.find("byte") != std::string::npos);
}

// Writers differ in the types of one number, and some write one for each layer.
TEST(one_number_in_any_form_that_holds_it) {
    GgufBytes written;
    written.value("whole", ValueType::f32, 4096.0f);
    written.value("half", ValueType::f32, 0.5f);
    written.value("base", ValueType::u32, uint32_t{500000});
    written.value("yes", ValueType::u32, uint32_t{1});
    written.numbers<uint32_t>("alike", ValueType::u32, {8, 8, 8});
    written.numbers<uint32_t>("unlike", ValueType::u32, {8, 8, 4});
    written.numbers<uint32_t>("none", ValueType::u32, {});
    written.numbers<float>("floats", ValueType::f32, {0.5f, 0.5f});
    std::vector<std::byte> bytes = written.bytes();
    Gguf file;
    EXPECT(Gguf::parse(bytes, &file).ok());
    int64_t integer = 0;
    EXPECT(file.integer("whole", 0, 9999, &integer).ok() && integer == 4096);
    EXPECT(file.integer("alike", 0, 9999, &integer).ok() && integer == 8);
    EXPECT(!file.integer("half", 0, 9999, &integer).ok());
    EXPECT(!file.integer("none", 0, 9999, &integer).ok());
    EXPECT(file.integer("unlike", 0, 9999, &integer).message.find("different values") !=
           std::string::npos);
    double number = 0.0;
    EXPECT(file.number("base", &number).ok() && number == 500000.0);
    EXPECT(file.number("floats", &number).ok() && number == 0.5);
    bool boolean = false;
    EXPECT(file.boolean("yes", &boolean).ok() && boolean);
    GgufBytes types;
    types.texts("tokenizer.ggml.tokens", {"a", "<0x41>"});
    types.numbers<uint8_t>("tokenizer.ggml.token_type", ValueType::u8, {1, 6});
    EXPECT_EQ(error_of(types.bytes()), "");
}

// R070: padded sizes that add up to 2^64.
TEST(sizes_that_wrap) {
    GgufBytes file = valid();
    file.tensor({"big", TensorType::f32, {uint64_t{1} << 61, 2}, {}});
    EXPECT(refused(file.bytes(), "'big' is larger than"));
    GgufBytes offsets = valid();
    EXPECT(refused(offsets.bytes([](size_t i, uint64_t* offset, uint32_t*) {
        if (i == 1) *offset = ~uint64_t{31};
    }),
                   "lies outside the file"));
}

// R072: a tensor count just under the bound, without the bytes for it.
TEST(counts_larger_than_the_file) {
    GgufBytes file = valid();
    file.extra_tensors = limits::GGUF_TENSORS_MAX - 3;
    EXPECT(refused(file.bytes(), "tensors do not fit"));
    file.extra_tensors = INT64_MAX;
    EXPECT(refused(file.bytes(), "tensors do not fit"));
    GgufBytes keys = valid();
    keys.extra_values = limits::GGUF_KEYS_MAX - 10;
    EXPECT(refused(keys.bytes(), "keys do not fit"));
    GgufBytes one_more = valid();
    one_more.extra_values = 1; // the first tensor is read as a key
    EXPECT(!error_of(one_more.bytes()).empty());
}

// R073: one dimension that wraps the product to a small size.
TEST(dimensions_that_wrap) {
    GgufBytes file;
    file.tensor({"wrap", TensorType::f32, {4, (uint64_t{1} << 42) + 1, uint64_t{1} << 22}, {}});
    EXPECT(refused(file.bytes(), "'wrap' is larger than"));
    GgufBytes zero;
    zero.tensor({"zero", TensorType::f32, {4, 0}, {}});
    EXPECT(refused(zero.bytes(), "dimension of zero"));
    GgufBytes none;
    none.tensor({"none", TensorType::f32, {}, {}});
    none.text("padding", std::string(64, 'x'));
    EXPECT(refused(none.bytes(), "0 dimensions"));
    GgufBytes five;
    five.tensor({"five", TensorType::f32, {1, 1, 1, 1, 1}, zeros(4)});
    EXPECT(refused(five.bytes(), "5 dimensions"));
}

// R075: an array of another element type than the format says.
TEST(known_keys_have_one_type) {
    GgufBytes scores;
    scores.numbers<uint8_t>("tokenizer.ggml.scores", ValueType::u8, {0, 0, 0});
    EXPECT(refused(scores.bytes(), "'tokenizer.ggml.scores' must be an array of float32"));
    GgufBytes tokens;
    tokens.text("tokenizer.ggml.tokens", "a");
    EXPECT(refused(tokens.bytes(), "'tokenizer.ggml.tokens' must be an array of string"));
    GgufBytes architecture;
    architecture.value("general.architecture", ValueType::u32, uint32_t{1});
    EXPECT(refused(architecture.bytes(), "must be a string"));
    GgufBytes types;
    types.texts("tokenizer.ggml.tokens", {"a", "b"});
    types.numbers<int32_t>("tokenizer.ggml.token_type", ValueType::i32, {1});
    EXPECT(refused(types.bytes(), "1 entries for 2 tokens"));
}

// R076: a vocabulary entry longer than any token.
TEST(long_tokens) {
    GgufBytes file;
    file.texts("tokenizer.ggml.tokens", {"a", std::string(limits::TOKEN_BYTES_MAX + 1, 'x'), "b"});
    EXPECT(refused(file.bytes(), "string 1 of key 'tokenizer.ggml.tokens'"));
    GgufBytes longest;
    longest.texts("tokenizer.ggml.tokens", {std::string(limits::TOKEN_BYTES_MAX, 'x')});
    EXPECT(error_of(longest.bytes()).empty());
}

// R078: byte tokens are exactly two hexadecimal digits.
TEST(byte_tokens) {
    uint8_t byte = 0;
    EXPECT(parse_byte_token("<0x41>", &byte) && byte == 0x41);
    EXPECT(parse_byte_token("<0xfF>", &byte) && byte == 0xFF);
    for (const char* token : {"<0x-1>", "<0x1>", "<0x001>", "<0x4g>", "<0x 1>", "0x41", "<0x41", "",
                              "<0x>", "<0X41>", "<0x+1>"})
        EXPECT(!parse_byte_token(token, &byte));
    GgufBytes file;
    file.texts("tokenizer.ggml.tokens", {"<0x-1>"});
    file.numbers<int32_t>("tokenizer.ggml.token_type", ValueType::i32, {6});
    EXPECT(refused(file.bytes(), "declared a byte but is not <0xNN>"));
}

// R079: a tensor that ends behind the file.
TEST(tensors_outside_the_file) {
    std::vector<std::byte> bytes = valid().bytes();
    bytes.pop_back();
    EXPECT(refused(bytes, "tensor 'two' lies outside the file"));
    EXPECT(refused(valid().bytes([](size_t i, uint64_t* offset, uint32_t*) {
        if (i == 1) *offset = 4096;
    }),
                   "lies outside the file"));
}

// R081: numbers that something divides by.
TEST(alignment) {
    for (uint32_t alignment : {0u, 3u, 48u, 0x80000000u}) {
        GgufBytes file;
        file.value("general.alignment", ValueType::u32, alignment);
        EXPECT(refused(file.bytes(), "is no power of two"));
    }
    GgufBytes coarse;
    coarse.alignment = 128;
    coarse.value("general.alignment", ValueType::u32, uint32_t{128});
    coarse.tensor({"a", TensorType::f32, {3}, zeros(12)});
    coarse.tensor({"b", TensorType::f32, {3}, zeros(12)});
    EXPECT(error_of(coarse.bytes()).empty());
    EXPECT(refused(valid().bytes([](size_t i, uint64_t* offset, uint32_t*) {
        if (i == 1) *offset += 8;
    }),
                   "unaligned offset"));
}

// R082: lengths that would be allocated.
TEST(declared_lengths_are_not_believed) {
    GgufBytes text;
    text.bare_text("key", uint64_t{1} << 40);
    text.text("padding", std::string(1000, 'x'));
    EXPECT(refused(text.bytes(), "is too long or runs past the end"));
    for (uint64_t count : {uint64_t{1} << 40, ~uint64_t{0}, (uint64_t{1} << 62) + 1}) {
        GgufBytes numbers;
        numbers.bare_array("key", ValueType::u32, count);
        EXPECT(refused(numbers.bytes(), "more than the file holds"));
        GgufBytes texts;
        texts.bare_array("key", ValueType::string, count);
        EXPECT(refused(texts.bytes(), "more than the file holds"));
    }
}

TEST(nested_arrays_and_unknown_types) {
    GgufBytes nested;
    nested.bare_array("key", ValueType::array, 1);
    EXPECT(refused(nested.bytes(), "unsupported type 9"));
    GgufBytes unknown;
    unknown.value("key", static_cast<ValueType>(13), uint32_t{0});
    EXPECT(refused(unknown.bytes(), "unsupported type 13"));
}

TEST(names_appear_once) {
    GgufBytes keys = valid();
    keys.text("general.architecture", "llama");
    EXPECT(refused(keys.bytes(), "key 'general.architecture' appears twice"));
    GgufBytes tensors = valid();
    tensors.tensor({"one", TensorType::f32, {1}, zeros(4)});
    EXPECT(refused(tensors.bytes(), "tensor 'one' appears twice"));
    GgufBytes empty = valid();
    empty.tensor({"", TensorType::f32, {1}, zeros(4)});
    EXPECT(refused(empty.bytes(), "empty tensor name"));
    GgufBytes long_name = valid();
    long_name.tensor({std::string(65, 'n'), TensorType::f32, {1}, zeros(4)});
    EXPECT(refused(long_name.bytes(), "bad tensor name length"));
}

TEST(tensors_do_not_overlap) {
    EXPECT(refused(valid().bytes([](size_t i, uint64_t* offset, uint32_t*) {
        if (i == 1) *offset = 0;
    }),
                   "overlap"));
}

TEST(tensor_types_and_blocks) {
    EXPECT(refused(valid().bytes([](size_t i, uint64_t*, uint32_t* type) {
        if (i == 1) *type = 9;
    }),
                   "has type 9 (Q8_1); supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                   "IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K and Q6_K"));
    GgufBytes file = valid();
    file.tensor({"ragged", TensorType::q8_0, {33, 32}, zeros(2048)});
    EXPECT(refused(file.bytes(), "no whole blocks of Q8_0"));
    struct Block {
        TensorType type;
        const char* name;
        uint64_t columns;
        size_t bytes;
    };
    for (const Block& block :
         {Block{TensorType::q5_0, "Q5_0", 32, 22}, Block{TensorType::q5_1, "Q5_1", 32, 24},
          Block{TensorType::q4_k, "Q4_K", 256, 144}, Block{TensorType::q5_k, "Q5_K", 256, 176},
          Block{TensorType::q6_k, "Q6_K", 256, 210}, Block{TensorType::q3_k, "Q3_K", 256, 110},
          Block{TensorType::q2_k, "Q2_K", 256, 84}, Block{TensorType::iq4_xs, "IQ4_XS", 256, 136},
          Block{TensorType::iq4_nl, "IQ4_NL", 32, 18}, Block{TensorType::mxfp4, "MXFP4", 32, 17}}) {
        GgufBytes whole = valid();
        whole.tensor({"blocks", block.type, {2 * block.columns, 3}, zeros(6 * block.bytes)});
        EXPECT(error_of(whole.bytes()).empty());
        GgufBytes ragged = valid();
        ragged.tensor({"ragged", block.type, {block.columns / 2, 6}, zeros(3 * block.bytes)});
        EXPECT(refused(ragged.bytes(), std::string("no whole blocks of ") + block.name));
        GgufBytes cut = valid();
        cut.tensor({"cut", block.type, {2 * block.columns, 3}, zeros(6 * block.bytes - 1)});
        EXPECT(refused(cut.bytes(), "lies outside the file"));
        GgufBytes wrapping = valid();
        wrapping.tensor({"wrap", block.type, {uint64_t{1} << 62, 4}, {}});
        EXPECT(refused(wrapping.bytes(), "'wrap' is larger than"));
    }
}

TEST(files_on_disk) {
    Gguf file;
    EXPECT(!Gguf::open("no-such-folder/no-such-file.gguf", &file).ok());
    EXPECT(!Gguf::open("/dev/null", &file).ok());
    EXPECT(!Gguf::open(".", &file).ok());
}

TEST(a_header_joined_with_files) {
    const std::vector<std::byte> header = valid().bytes();
    FileMapping own;
    EXPECT(FileMapping::open("/proc/self/exe", &own).ok());
    auto size_bytes = static_cast<int64_t>(own.bytes().size());
    const FilePart part = {"/proc/self/exe", size_bytes};
    FileMapping joined;
    EXPECT(FileMapping::join(header, {part, part}, &joined).ok());
    std::span<const std::byte> bytes = joined.bytes();
    auto begins = [&](size_t at, std::span<const std::byte> wanted) {
        return at + wanted.size() <= bytes.size() &&
               std::equal(wanted.begin(), wanted.end(), bytes.begin() + static_cast<int64_t>(at));
    };
    const size_t page = 4096; // of this architecture
    const size_t file_pages = (own.bytes().size() + page - 1) / page;
    EXPECT(header.size() <= page && begins(0, header));
    EXPECT(begins(page, own.bytes()) && begins(page * (1 + file_pages), own.bytes()));
    EXPECT_EQ(bytes.size(), page * (1 + 2 * file_pages));
    Gguf file;
    EXPECT(Gguf::join(header, {part}, &file).ok());
    EXPECT_EQ(file.tensors().size(), 2u);
    Gguf same;
    EXPECT(Gguf::join(header, {part}, &same).ok());
    EXPECT_EQ(same.identity().changed_ns, file.identity().changed_ns);
    std::vector<std::byte> longer = header;
    longer.push_back(std::byte{1});
    EXPECT(Gguf::join(longer, {part}, &same).ok());
    EXPECT(same.identity().inode != file.identity().inode);
}

TEST(files_that_do_not_join) {
    const std::vector<std::byte> header = valid().bytes();
    Gguf file;
    auto error = [&](const FilePart& part) { return Gguf::join(header, {part}, &file).message; };
    EXPECT(error({"/proc/self/exe", 5}).find("has changed since") != std::string::npos);
    EXPECT(error({"/proc/self/exe", 0}).find("is empty") != std::string::npos);
    EXPECT(error({"no-such-file", 5}).find("cannot open") != std::string::npos);
    EXPECT(error({".", 5}).find("not a regular file") != std::string::npos);
    EXPECT(error({"/proc/self/exe", INT64_MAX}).find("cannot map") != std::string::npos);
    EXPECT(!Gguf::join({}, {}, &file).ok());
}

// As when the file lies in a file system that takes its time, and a signal comes.
TEST(a_call_that_a_signal_interrupts_is_made_again_and_no_other) {
    int calls = 0;
    int descriptor = retried([&] {
        errno = EINTR;
        return ++calls < 3 ? -1 : 7;
    });
    EXPECT(descriptor == 7 && calls == 3);
    calls = 0;
    descriptor = retried([&] {
        errno = EACCES;
        calls++;
        return -1;
    });
    EXPECT(descriptor == -1 && calls == 1 && errno == EACCES);
}

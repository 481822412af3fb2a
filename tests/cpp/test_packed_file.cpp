// Packed files: the same bits as loading what they were made of, from a map of the file; every kind
// of damage is one line that says what to do; and no file appears in part.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/model/convert.h"
#include "core/model/packed_file.h"
#include "test.h"
#include "tiny_llama.h"

namespace {

using namespace sublimate;
using namespace sublimate::test;
using Bytes = std::vector<std::byte>;

// A name that nothing has, for a file that goes with the test.
class TargetName {
public:
    TargetName() {
        std::string name = (std::filesystem::temp_directory_path() / "packed-XXXXXX").string();
        CHECK(mkdtemp(name.data()) != nullptr);
        folder_ = name;
    }
    ~TargetName() { std::filesystem::remove_all(folder_); }
    std::string path() const { return folder_ + "/model.sublimate"; }
    size_t files() const {
        size_t count = 0;
        for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder_))
            count++;
        return count;
    }

private:
    std::string folder_;
};

Bytes bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    Bytes bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
}

Status convert(const TinyLlama& tiny, const std::string& target, ConvertOptions options = {}) {
    TemporaryFile source(tiny_file(tiny));
    options.threads = 2;
    return convert_model(source.path(), target, options);
}

Status load(const std::string& path, const WeightForm& form, std::shared_ptr<LoadedModel>* model) {
    LoadOptions options;
    options.exact = form.exact;
    options.quantise = form.quantise;
    options.kv_bytes = 1 << 20;
    options.threads = 2;
    return load_model(path, options, model);
}

std::vector<float> logits_of(const LoadedModel& model, Arithmetic arithmetic) {
    std::vector<float> logits;
    CHECK(compute_logits(model, {1, 5, 9, 33, 7, 100}, arithmetic, 0, &logits).ok());
    return logits;
}

void expect_equal_models(const TinyLlama& tiny, const WeightForm& form) {
    TargetName target;
    ConvertOptions options;
    options.form = form;
    EXPECT_EQ(convert(tiny, target.path(), options).message, std::string());
    TemporaryFile source(tiny_file(tiny));
    std::shared_ptr<LoadedModel> packed, mapped;
    EXPECT_EQ(load(source.path(), form, &packed).message, std::string());
    EXPECT_EQ(load(target.path(), {form.exact, Quantise::none}, &mapped).message, std::string());
    if (packed == nullptr || mapped == nullptr) return;
    const Weights& from = packed->weights;
    const Weights& to = mapped->weights;
    EXPECT(to.file != nullptr && to.own.data() == nullptr && to.shared.data() == nullptr);
    EXPECT(from.file == nullptr);
    EXPECT(from.bytes == to.bytes &&
           std::memcmp(from.data, to.data, static_cast<size_t>(to.bytes)) == 0);
    EXPECT(mapped->quantise == form.quantise && mapped->exact == form.exact);
    EXPECT_EQ(packed->config.parameters, mapped->config.parameters);
    for (Arithmetic arithmetic : {Arithmetic::prompt, Arithmetic::generated})
        EXPECT(logits_of(*packed, arithmetic) == logits_of(*mapped, arithmetic));
    EXPECT_EQ(verify_packed(target.path()).message, std::string());
    EXPECT_EQ(target.files(), size_t{1});
}

// A packed file of a tiny model, and what loading says when something was done to it.
std::string said_of(const std::function<void(Bytes&)>& change, const WeightForm& form = {},
                    bool verifies = false) {
    static const Bytes good = [] {
        TargetName target;
        CHECK(convert(tiny_of_type(TensorType::bf16), target.path()).ok());
        return bytes_of(target.path());
    }();
    Bytes bytes = good;
    change(bytes);
    TemporaryFile file(bytes);
    std::shared_ptr<LoadedModel> model;
    Status status = verifies ? verify_packed(file.path()) : load(file.path(), form, &model);
    EXPECT(status.message.find('\n') == std::string::npos);
    EXPECT(status.ok() || status.message.find(file.path()) == 0);
    return status.message;
}

PackedHeader header_of(const Bytes& bytes) {
    PackedHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    return header;
}

// With the checksums that fit, so that what is written is believed.
void write_header(Bytes& bytes, PackedHeader header) {
    auto sum = [&](PackedSection* section) {
        if (section->offset + section->bytes > bytes.size()) return;
        section->checksum =
            section_checksum(std::span(bytes).subspan(section->offset, section->bytes));
    };
    sum(&header.metadata);
    sum(&header.small);
    sum(&header.entries);
    header.checksum = 0;
    header.checksum = section_checksum(std::as_bytes(std::span(&header, 1)));
    std::memcpy(bytes.data(), &header, sizeof header);
}

void edit_header(Bytes& bytes, const std::function<void(PackedHeader&)>& edit) {
    PackedHeader header = header_of(bytes);
    edit(header);
    write_header(bytes, header);
}

void edit_entry(Bytes& bytes, size_t index, const std::function<void(PackedEntry&)>& edit) {
    PackedHeader header = header_of(bytes);
    PackedEntry entry;
    std::byte* at = bytes.data() + header.entries.offset + index * sizeof entry;
    std::memcpy(&entry, at, sizeof entry);
    edit(entry);
    std::memcpy(at, &entry, sizeof entry);
    write_header(bytes, header);
}

void flip(Bytes& bytes, uint64_t at) {
    CHECK(at < bytes.size());
    bytes[at] ^= std::byte{4};
}

bool mentions(const std::string& message, const char* part) {
    if (message.find(part) != std::string::npos) return true;
    std::printf("the message is '%s', wanted '%s'\n", message.c_str(), part);
    return false;
}

} // namespace

TEST(a_packed_model_is_the_model) {
    for (TensorType type : {TensorType::q4_1, TensorType::q8_0, TensorType::q6_k, TensorType::f32,
                            TensorType::mxfp4, TensorType::iq4_xs, TensorType::q2_k})
        for (bool exact : {false, true}) expect_equal_models(tiny_of_type(type), {exact, {}});
    for (TensorType type : {TensorType::bf16, TensorType::f16, TensorType::f32})
        for (Quantise quantise : {Quantise::int8, Quantise::int4})
            expect_equal_models(tiny_of_type(type), {false, quantise});
}

TEST(so_it_is_with_biases_windows_fused_tensors_and_a_head_of_its_own) {
    for (const char* name : {"qwen2", "qwen3", "gemma3", "phi3", "olmo2", "granite"}) {
        TinyLlama tiny = tiny_of_type(TensorType::bf16);
        tiny.architecture = name;
        tiny.tied = std::string(name) == "qwen3";
        if (std::string(name) == "gemma3") tiny.window = 4;
        expect_equal_models(tiny, {});
        expect_equal_models(tiny, {false, Quantise::int4});
    }
}

// What the configuration reads is in the file as it was.
TEST(rope_tensors_come_along) {
    TinyLlama tiny;
    tiny.extra = [](GgufBytes& file) {
        TensorSpec spec = {"rope_freqs.weight", TensorType::f32, {8}, {}};
        for (int32_t i = 0; i < 8; i++) {
            float divisor = 1.0f + static_cast<float>(i);
            const auto* from = reinterpret_cast<const std::byte*>(&divisor);
            spec.data.insert(spec.data.end(), from, from + sizeof divisor);
        }
        file.tensor(std::move(spec));
    };
    expect_equal_models(tiny, {});
}

TEST(a_header_is_all_of_the_sources) {
    TinyLlama tiny = tiny_of_type(TensorType::bf16);
    tiny.extra = [](GgufBytes& file) {
        file.texts("tokenizer.ggml.tokens", {"a", "", "c"});
        file.numbers<float>("tokenizer.ggml.scores", ValueType::f32, {1.0f, 2.0f, 3.0f});
        file.value("general.alignment", ValueType::u32, uint32_t{32});
    };
    TemporaryFile source(tiny_file(tiny));
    TargetName target;
    EXPECT_EQ(convert(tiny, target.path()).message, std::string());
    Gguf from, to;
    EXPECT(Gguf::open(source.path(), &from).ok() && Gguf::open(target.path(), &to).ok());
    EXPECT(from.packed() == nullptr && to.packed() != nullptr);
    EXPECT_EQ(from.values().size(), to.values().size());
    for (const GgufValue& value : from.values()) {
        const GgufValue* found = to.find(value.key);
        EXPECT(found != nullptr && found->type == value.type && found->count == value.count &&
               found->is_array == value.is_array &&
               std::equal(value.payload.begin(), value.payload.end(), found->payload.begin(),
                          found->payload.end()));
    }
    EXPECT_EQ(from.tensors().size(), to.tensors().size());
    for (const GgufTensor& tensor : from.tensors()) {
        const GgufTensor* found = to.tensor(tensor.name);
        EXPECT(found != nullptr && found->type == tensor.type &&
               found->dimensions == tensor.dimensions && found->data.empty() &&
               found->source_bytes == tensor.data.size());
    }
}

TEST(what_is_damaged_says_what_to_do) {
    EXPECT_EQ(said_of([](Bytes&) {}), std::string());
    auto cut = [](size_t size) { return [=](Bytes& bytes) { bytes.resize(size); }; };
    EXPECT(mentions(said_of(cut(4)), "not a GGUF file"));
    EXPECT(mentions(said_of(cut(8)), "ends within its header: copy or convert it again"));
    EXPECT(mentions(said_of(cut(143)), "ends within its header"));
    EXPECT(mentions(said_of(cut(144)), "has 144 of its"));
    EXPECT(mentions(said_of(cut(5000)), "has 5000 of its"));
    EXPECT(mentions(said_of([](Bytes& bytes) { bytes.pop_back(); }), "copy it again, or convert"));
    EXPECT(mentions(said_of([](Bytes& bytes) { bytes.push_back({}); }), "copy it again, or"));
    auto version = [](Bytes& bytes) {
        edit_header(bytes, [](PackedHeader& header) { header.version = PACKED_VERSION + 1; });
    };
    EXPECT(mentions(said_of(version), "has format 2, this Sublimate reads 1: convert the model"));
    for (uint64_t at = 16; at < sizeof(PackedHeader); at += 8)
        EXPECT(mentions(said_of([=](Bytes& bytes) { flip(bytes, at); }), "header is damaged"));
    auto flipped = [](PackedSection PackedHeader::* section, uint64_t at) {
        return [=](Bytes& bytes) { flip(bytes, (header_of(bytes).*section).offset + at); };
    };
    for (uint64_t at : {0, 30, 100})
        EXPECT(mentions(said_of(flipped(&PackedHeader::metadata, at)), "metadata is damaged"));
    EXPECT(mentions(said_of(flipped(&PackedHeader::entries, 5)), "list of weights is damaged"));
    // Of the weights only who asks is told.
    auto weights = flipped(&PackedHeader::weights, 777);
    EXPECT_EQ(said_of(weights), std::string());
    EXPECT(mentions(said_of(weights, {}, true), "weights are damaged: convert the model again"));
    EXPECT_EQ(said_of([](Bytes&) {}, {}, true), std::string());
}

TEST(another_form_says_how_to_load_it) {
    auto as_it_is = [](Bytes&) {};
    EXPECT(mentions(said_of(as_it_is, {true, {}}), "was packed without --exact: load its source"));
    EXPECT(mentions(said_of(as_it_is, {false, Quantise::int8}),
                    "was packed without --quantize int8: leave it out"));
    auto exact = [](Bytes& bytes) {
        edit_header(bytes, [](PackedHeader& header) { header.exact = 1; });
    };
    EXPECT(mentions(said_of(exact), "was packed with --exact: load it with --exact"));
}

// Believed by its checksums, refused by what it says.
TEST(what_lies_is_refused_before_it_is_read) {
    auto edited = [](const std::function<void(PackedHeader&)>& edit) {
        return said_of([&](Bytes& bytes) { edit_header(bytes, edit); });
    };
    EXPECT(mentions(edited([](PackedHeader& h) { h.exact = 2; }), "header is damaged"));
    EXPECT(mentions(edited([](PackedHeader& h) { h.quantise = 3; }), "header is damaged"));
    EXPECT(mentions(edited([](PackedHeader& h) { h.weights.bytes = 0; }), "header is damaged"));
    EXPECT(mentions(edited([](PackedHeader& h) { h.weights.offset += 64; }), "header is damaged"));
    EXPECT(mentions(edited([](PackedHeader& h) { h.weights.bytes += 1; }), "header is damaged"));
    EXPECT(mentions(edited([](PackedHeader& h) { h.metadata.offset = 0; }), "header is damaged"));
    EXPECT(mentions(edited([](PackedHeader& h) { h.metadata.bytes = UINT64_MAX; }),
                    "header is damaged"));
    EXPECT(mentions(edited([](PackedHeader& h) { h.small.offset = h.metadata.offset; }),
                    "header is damaged"));
    EXPECT(mentions(edited([](PackedHeader& h) { h.metadata.bytes -= 1; }), "malformed GGUF"));
    EXPECT(mentions(edited([](PackedHeader& h) { h.entries.bytes -= 1; }), "list of weights"));
    const char* others = "the packed weights are not those";
    EXPECT(
        mentions(edited([](PackedHeader& h) { h.entries.bytes -= sizeof(PackedEntry); }), others));
    EXPECT(mentions(edited([](PackedHeader& h) {
                        h.weights.bytes -= 64;
                        h.file_bytes -= 64;
                    }),
                    "has"));
    auto entry = [](size_t index, const std::function<void(PackedEntry&)>& edit) {
        return said_of([&](Bytes& bytes) { edit_entry(bytes, index, edit); });
    };
    // The first is the embedding, the second a norm.
    EXPECT(mentions(entry(0, [](PackedEntry& e) { e.kind = 99; }), "list of weights is damaged"));
    EXPECT(mentions(entry(0, [](PackedEntry& e) { e.kind = -1; }), "list of weights is damaged"));
    EXPECT(mentions(entry(0, [](PackedEntry& e) { e.affine = 2; }), "list of weights is damaged"));
    EXPECT(mentions(entry(0, [](PackedEntry& e) { e.offset = -1; }), "list of weights is damaged"));
    EXPECT(mentions(entry(0, [](PackedEntry& e) { e.is_vector = 2; }), "list of weights"));
    EXPECT(mentions(entry(0, [](PackedEntry& e) { e = {1, 0, 0, 0}; }), others));
    EXPECT(mentions(entry(1, [](PackedEntry& e) { e.is_vector = 0; }), others));
    EXPECT(mentions(entry(0, [](PackedEntry& e) { e.kind = 0; }), others)); // of another size
    // A K kind, of which 64 columns are no whole number of blocks.
    EXPECT(mentions(entry(0, [](PackedEntry& e) { e.kind = 5; }), others));
}

std::byte* after(Bytes& bytes, const PackedHeader& header, const char* text) {
    std::byte* begin = bytes.data() + header.metadata.offset;
    std::byte* end = begin + header.metadata.bytes;
    const auto* wanted = reinterpret_cast<const std::byte*>(text);
    std::byte* found = std::search(begin, end, wanted, wanted + strlen(text));
    CHECK(found != end);
    return found + strlen(text);
}

// A packed model of a source with these keys, in which something was changed.
Bytes packed_with(const std::function<void(GgufBytes&)>& extra,
                  const std::function<void(Bytes&, const PackedHeader&)>& change) {
    TinyLlama tiny = tiny_of_type(TensorType::bf16);
    tiny.extra = extra;
    TargetName target;
    CHECK(convert(tiny, target.path()).ok());
    Bytes bytes = bytes_of(target.path());
    change(bytes, header_of(bytes));
    write_header(bytes, header_of(bytes));
    return bytes;
}

void factors(GgufBytes& file) {
    TensorSpec spec = {"rope_freqs.weight", TensorType::f32, {8}, Bytes(32)};
    const float one = 1.0f;
    for (size_t i = 0; i < 8; i++) std::memcpy(spec.data.data() + 4 * i, &one, sizeof one);
    file.tensor(std::move(spec));
}

TEST(what_is_to_be_read_and_has_no_data_is_refused) {
    TemporaryFile file(packed_with(factors, [](Bytes& bytes, const PackedHeader& header) {
        // The count of dimensions, the one there is, the type, then the offset.
        std::byte* offset = after(bytes, header, "rope_freqs.weight") + 4 + 8 + 4;
        std::memcpy(offset, &DETACHED, sizeof DETACHED);
    }));
    std::shared_ptr<LoadedModel> model;
    std::string told = load(file.path(), {}, &model).message;
    EXPECT(mentions(told, "must hold 8 F32 values") && told.find(file.path()) == 0);
    Gguf gguf;
    ModelPlan plan;
    EXPECT(Gguf::open(file.path(), &gguf).ok());
    EXPECT(mentions(plan_model(gguf, {}, false, &plan).message, "must hold 8 F32 values"));
}

TEST(a_packed_file_is_neither_a_part_nor_an_adapter) {
    auto keys = [](GgufBytes& file) {
        file.value("tilps.count", ValueType::u16, uint16_t{2}); // `convert` leaves out split.*
        file.value("tilps.no", ValueType::u16, uint16_t{1});
        file.text("general.type", "adaptor");
        file.text("adapter.type", "lora");
    };
    auto rename = [](const char* from, const char* to) {
        return [=](Bytes& bytes, const PackedHeader& header) {
            for (int i = 0; i < (from[0] == 't' ? 2 : 1); i++) // both keys
                std::memcpy(after(bytes, header, from) - strlen(from), to, strlen(to));
        };
    };
    TargetName folder;
    std::string stem = folder.path();
    auto write = [&](const std::string& name, const Bytes& bytes) {
        std::ofstream(name, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()),
                   static_cast<std::streamsize>(bytes.size()));
        return name;
    };
    std::string second =
        write(stem + "-00002-of-00002.gguf", packed_with(keys, rename("tilps.", "split.")));
    GgufBytes one;
    one.value("split.count", ValueType::u16, uint16_t{2});
    one.value("split.no", ValueType::u16, uint16_t{0});
    std::string first = write(stem + "-00001-of-00002.gguf", one.bytes());
    for (const std::string& path : {first, second}) {
        Gguf file;
        EXPECT(mentions(Gguf::open(path, &file).message,
                        "-00002-of-00002.gguf: it is a packed file, which is never"));
    }
    LoadOptions options;
    std::string adapter = write(stem + ".gguf", packed_with(keys, rename("adaptor", "adapter")));
    options.adapters = {{"packed", adapter, {}}};
    std::shared_ptr<LoadedModel> model;
    EXPECT(mentions(load_tiny({}, options, &model).message, "a packed file is no adapter"));
}

TEST(a_table_of_tensors_that_lies_is_refused) {
    auto said = [](uint64_t rows) {
        return said_of([=](Bytes& bytes) {
            PackedHeader header = header_of(bytes);
            // The count of dimensions, the columns, then the rows.
            std::memcpy(after(bytes, header, "token_embd.weight") + 4 + 8, &rows, sizeof rows);
            write_header(bytes, header);
        });
    };
    EXPECT_EQ(said(101), std::string());
    EXPECT(mentions(said(200), "the packed weights are not those"));
    EXPECT(mentions(said(uint64_t{1} << 40), "is larger than the file"));
    EXPECT(mentions(said(UINT64_MAX / 2), "is larger than any file"));
}

TEST(nothing_appears_in_part) {
    TargetName target;
    TinyLlama quantised;
    ConvertOptions to_int8;
    to_int8.form.quantise = Quantise::int8;
    EXPECT(mentions(convert(quantised, target.path(), to_int8).message, "quantised already"));
    EXPECT_EQ(target.files(), size_t{0});
    TinyLlama missing;
    missing.without = "blk.1.ffn_up";
    EXPECT(mentions(convert(missing, target.path()).message, "no tensor 'blk.1.ffn_up.weight'"));
    EXPECT_EQ(target.files(), size_t{0});
    // No file may be as large as this one would be.
    signal(SIGXFSZ, SIG_IGN);
    rlimit before = {};
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    rlimit small = {1 << 20, before.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    std::string said = convert({}, target.path()).message;
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    EXPECT(mentions(said, "File too large"));
    EXPECT_EQ(target.files(), size_t{0});
    EXPECT(mentions(convert({}, "/nowhere/at/all.sublimate").message, "cannot write /nowhere"));
}

TEST(what_is_there_stays_unless_it_may_go) {
    TargetName target;
    EXPECT(convert({}, target.path()).ok());
    const Bytes first = bytes_of(target.path());
    TinyLlama other;
    other.seed = 2;
    EXPECT(mentions(convert(other, target.path()).message, "is there already"));
    EXPECT(bytes_of(target.path()) == first);
    ConvertOptions replace;
    replace.replace = true;
    // One that was mapped stays what it was.
    std::shared_ptr<LoadedModel> model;
    EXPECT(load(target.path(), {}, &model).ok());
    const std::vector<float> logits = logits_of(*model, Arithmetic::prompt);
    EXPECT(convert(other, target.path(), replace).ok());
    EXPECT(bytes_of(target.path()) != first);
    EXPECT(logits_of(*model, Arithmetic::prompt) == logits);
    EXPECT(mentions(convert_model(target.path(), target.path(), replace).message,
                    "is the model itself"));
    TargetName second;
    EXPECT(mentions(convert_model(target.path(), second.path(), {}).message, "is packed already"));
}

// What a killed one left is written over; one that still writes has the name to itself.
TEST(one_writes_a_name_at_a_time) {
    TargetName target;
    std::string part = target.path() + ".part";
    std::ofstream(part) << "left behind";
    int fd = open(part.c_str(), O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    EXPECT(mentions(convert({}, target.path()).message, "is being written by another process"));
    close(fd);
    EXPECT_EQ(convert({}, target.path()).message, std::string());
    EXPECT_EQ(target.files(), size_t{1});
    TargetName linked;
    CHECK(symlink(target.path().c_str(), (linked.path() + ".part").c_str()) == 0);
    EXPECT(mentions(convert({}, linked.path()).message, "cannot write"));
    EXPECT_EQ(verify_packed(target.path()).message, std::string());
}

TEST(checksums_tell_every_change) {
    Random random(3);
    for (size_t size : {0, 1, 7, 8, 31, 32, 33, 64, 100}) {
        Bytes bytes(size);
        for (std::byte& each : bytes) each = static_cast<std::byte>(random.below(256));
        const uint64_t sum = section_checksum(bytes);
        for (size_t at = 0; at < size; at++) {
            bytes[at] ^= std::byte{1};
            EXPECT(section_checksum(bytes) != sum);
            bytes[at] ^= std::byte{1};
        }
        bytes.push_back({});
        EXPECT(section_checksum(bytes) != sum);
    }
}

// A file that was written by the last release has to be refused by this one if panels have changed
// since: whoever changes a number here raises PACKED_VERSION. (Not if a type takes another kind:
// the kinds are in the file, and those of older ones stay.)
TEST(the_layout_of_version_1_is_frozen) {
    constexpr TensorType TYPES[] = {TensorType::f32,  TensorType::f16,  TensorType::bf16,
                                    TensorType::q8_0, TensorType::q4_0, TensorType::q4_1,
                                    TensorType::q5_0, TensorType::q5_1, TensorType::q4_k,
                                    TensorType::q5_k, TensorType::q6_k, TensorType::q3_k};
    uint64_t all = PACKED_VERSION;
    for (TensorType type : TYPES) {
        TemporaryFile source(tiny_file(tiny_of_type(type)));
        std::shared_ptr<LoadedModel> model;
        CHECK(load(source.path(), {}, &model).ok());
        std::span bytes(model->weights.data, static_cast<size_t>(model->weights.bytes));
        all = all * 31 + section_checksum(bytes);
    }
    EXPECT_EQ(all, uint64_t{4764825708941369088u});
}

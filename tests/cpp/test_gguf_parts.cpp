// Models in several files: all parts make one model, whichever is named; a part that is missing, is
// of another model or lies about itself is named. And files that are something else.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gguf_writer.h"
#include "test.h"

namespace {

using namespace sublimate;
using sublimate::test::GgufBytes;

// A folder that is gone at the end.
struct Folder {
    std::filesystem::path path;

    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "parts-XXXXXX").string();
        path = mkdtemp(name.data());
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string write(const std::string& name, const std::vector<std::byte>& bytes) const {
        std::ofstream(path / name, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()),
                   static_cast<std::streamsize>(bytes.size()));
        return (path / name).string();
    }
};

struct Part {
    uint16_t number;
    uint16_t count = 3;
    int32_t tensors = 4;
    std::string name = "a model"; // of general.name; "": it has none
    std::vector<std::string> holds = {};
};

std::vector<std::byte> bytes_of(const Part& part) {
    GgufBytes file;
    if (part.number == 0) file.text("general.architecture", "llama");
    if (!part.name.empty()) file.text("general.name", part.name);
    file.value("split.no", ValueType::u16, part.number);
    file.value("split.count", ValueType::u16, part.count);
    file.value("split.tensors.count", ValueType::i32, part.tensors);
    for (const std::string& name : part.holds)
        file.tensor({name,
                     TensorType::f32,
                     {8},
                     std::vector<std::byte>(32, static_cast<std::byte>(name[0]))});
    return file.bytes();
}

std::string part_name(int number, int count = 3) {
    return "m-0000" + std::to_string(number + 1) + "-of-0000" + std::to_string(count) + ".gguf";
}

// The first has no tensor, as writers leave it that put metadata alone.
std::vector<Part> valid() {
    return {{.number = 0},
            {.number = 1, .holds = {"a", "b"}},
            {.number = 2, .name = "", .holds = {"c", "d"}}};
}

std::vector<std::string> write(const Folder& folder, const std::vector<Part>& parts) {
    std::vector<std::string> paths;
    for (const Part& part : parts)
        paths.push_back(folder.write(part_name(part.number), bytes_of(part)));
    return paths;
}

bool refused(const std::string& path, const std::string& why) {
    Gguf file;
    std::string message = Gguf::open(path, &file).message;
    if (message.find(why) != std::string::npos && message.find('\n') == std::string::npos)
        return true;
    std::printf("the message is '%s', wanted '%s'\n", message.c_str(), why.c_str());
    return false;
}

bool same(const FileIdentity& a, const FileIdentity& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

} // namespace

TEST(parts_make_one_model_whichever_is_named) {
    Folder folder;
    std::vector<std::string> paths = write(folder, valid());
    Gguf first;
    EXPECT(Gguf::open(paths[0], &first).ok());
    for (const std::string& path : paths) {
        Gguf file;
        EXPECT_EQ(Gguf::open(path, &file).message, "");
        EXPECT_EQ(file.part_count(), 3u);
        EXPECT_EQ(file.tensors().size(), 4u);
        EXPECT(file.find("general.architecture") != nullptr);
        uint64_t bytes = 0;
        for (const std::string& each : paths) bytes += std::filesystem::file_size(each);
        EXPECT_EQ(file.file_bytes(), bytes);
        for (const char* name : {"a", "b", "c", "d"}) {
            const GgufTensor* tensor = file.tensor(name);
            EXPECT(tensor != nullptr && tensor->data.size() == 32);
            EXPECT(tensor != nullptr && tensor->data[31] == static_cast<std::byte>(name[0]));
        }
        EXPECT(same(file.identity(), first.identity()));
    }
}

// Weights that others share are told apart by it (shared_memory.h).
TEST(identity_is_of_all_parts) {
    Folder folder;
    std::vector<std::string> paths = write(folder, valid());
    Gguf before;
    EXPECT(Gguf::open(paths[0], &before).ok());
    Part changed = valid()[2];
    changed.holds = {"d", "c"};
    std::filesystem::remove(paths[2]);
    folder.write(part_name(2), bytes_of(changed));
    std::filesystem::last_write_time(paths[2], std::filesystem::last_write_time(paths[0]) +
                                                   std::chrono::seconds(9));
    Gguf after;
    EXPECT(Gguf::open(paths[0], &after).ok());
    EXPECT(!same(before.identity(), after.identity()));
    EXPECT_EQ(before.file_bytes(), after.file_bytes());
}

TEST(missing_parts_are_named) {
    for (int missing : {0, 1, 2}) {
        Folder folder;
        std::vector<std::string> paths = write(folder, valid());
        std::filesystem::remove(paths[static_cast<size_t>(missing)]);
        std::string other = paths[missing == 0 ? 1 : 0];
        EXPECT(refused(other, "part " + std::to_string(missing + 1) + " of 3 of"));
        EXPECT(refused(other, part_name(missing) + ": No such file"));
    }
    Folder folder;
    std::string renamed = folder.write("model.gguf", bytes_of(valid()[0]));
    EXPECT(refused(renamed, "model.gguf: it says that it is part 1 of 3, whose name ends in "
                            "'-00001-of-00003.gguf'"));
}

TEST(parts_that_lie_or_belong_elsewhere_are_named) {
    auto with = [](const Part& part, const std::string& why) {
        Folder folder;
        std::vector<Part> parts = valid();
        std::vector<std::string> paths = write(folder, parts);
        // In the place of the second, whatever it says of itself.
        folder.write(part_name(1), bytes_of(part));
        return refused(paths[0], part_name(1) + ": " + why);
    };
    EXPECT(with({.number = 2, .holds = {"a", "b"}}, "it says that it is part 3 of 3"));
    EXPECT(with({.number = 1, .count = 2, .holds = {"a", "b"}}, "it says that it is part 2 of 2"));
    EXPECT(with({.number = 1, .tensors = 5, .holds = {"a", "b"}}, "its split.tensors.count is 5"));
    EXPECT(with({.number = 1, .name = "another", .holds = {"a", "b"}},
                "its 'general.name' is not that of the first part"));
    Folder folder;
    std::vector<Part> parts = valid();
    parts[1].holds = {"a", "c"};
    EXPECT(refused(write(folder, parts)[0], "tensor 'c' is in two of its parts"));
    parts[1].holds = {"a"};
    EXPECT(refused(write(folder, parts)[0], "its 3 parts hold 3 tensors"));
    std::ofstream(folder.path / part_name(1)) << "GGUF";
    EXPECT(refused(folder.path / part_name(0), part_name(1) + ": malformed GGUF file: no version"));
    std::filesystem::remove(folder.path / part_name(1));
    std::filesystem::create_directory(folder.path / part_name(1));
    EXPECT(refused(folder.path / part_name(0), "is not a regular file"));
}

TEST(counts_of_parts_are_bounded_and_one_is_whole) {
    Folder folder;
    for (uint16_t count : {uint16_t{0}, uint16_t{1}}) {
        Gguf file;
        std::string path = folder.write(
            "whole.gguf", bytes_of({.number = 0, .count = count, .tensors = 0, .holds = {"a"}}));
        EXPECT_EQ(Gguf::open(path, &file).message, "");
        EXPECT_EQ(file.part_count(), 1u);
    }
    EXPECT(refused(folder.write("many.gguf", bytes_of({.number = 0, .count = 65535})),
                   "many.gguf: key 'split.count'"));
    EXPECT(refused(folder.write("m-00006-of-00003.gguf", bytes_of({.number = 5, .count = 3})),
                   "it says that it is part 6 of 3"));
}

TEST(other_formats_are_named) {
    Folder folder;
    auto is = [&](const std::string& content, const char* why) {
        std::vector<std::byte> bytes;
        for (char c : content) bytes.push_back(static_cast<std::byte>(c));
        return refused(folder.write("file.gguf", bytes), why);
    };
    EXPECT(is(std::string("PK\x03\x04") + "archive/data.pkl", "it is a ZIP archive"));
    EXPECT(is("\x80\x04\x95 pickle", "it is a pickle"));
    EXPECT(is("tjgg\x03 old", "older GGML format"));
    EXPECT(is("version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"));
    EXPECT(is("<!DOCTYPE html>", "it is a web page"));
    EXPECT(is(std::string("\x10\0\0\0\0\0\0\0{\"a\":{}}", 16), "it is a safetensors file"));
    EXPECT(is(std::string(64, '\0'), "it begins with zeros"));
    EXPECT(is("what is this?", "it does not start with 'GGUF'"));
    EXPECT(is(std::string("GGUF\0\0\0\x03", 8), "big-endian"));
}

// Somebody copies another model over the file, or cuts it short, while it is read: its header is
// what it was, and to look at it is no SIGBUS.
TEST(header_outlives_its_file) {
    Folder folder;
    GgufBytes content;
    content.text("general.name", "what it was");
    content.texts("tokenizer.ggml.tokens", std::vector<std::string>(50000, "token"));
    content.tensor({"a", TensorType::f32, {8}, std::vector<std::byte>(32)});
    const std::string path = folder.write("m.gguf", content.bytes());
    Gguf file;
    EXPECT_EQ(Gguf::open(path, &file).message, "");
    const auto size = std::filesystem::file_size(path);
    folder.write("m.gguf", std::vector<std::byte>(size, std::byte{0xff}));
    std::filesystem::resize_file(path, 1);
    std::string_view name;
    std::vector<std::string_view> tokens;
    EXPECT_EQ(file.string("general.name", &name).message, "");
    EXPECT_EQ(std::string(name), "what it was");
    EXPECT_EQ(file.strings("tokenizer.ggml.tokens", &tokens).message, "");
    EXPECT(tokens.size() == 50000 && tokens.back() == "token");
    EXPECT(file.tensor("a") != nullptr);
}

TEST(file_that_shrinks_before_it_was_copied_is_an_error) {
    Folder folder;
    const std::vector<std::byte> bytes(300000, std::byte{7});
    const std::string path = folder.write("m.gguf", bytes);
    FileMapping mapping;
    EXPECT_EQ(FileMapping::open(path, &mapping).message, "");
    EXPECT_EQ(mapping.copy_front(5000).message, "");
    EXPECT_EQ(mapping.copy_front(100000).message, "");
    std::filesystem::resize_file(path, 100000);
    EXPECT(mapping.bytes()[99999] == std::byte{7});
    EXPECT_EQ(mapping.copy_front(100).message, ""); // it is there
    EXPECT_EQ(mapping.copy_front(200000).message, "it has become shorter while it was read");
    FileMapping whole;
    EXPECT_EQ(FileMapping::open(folder.write("n.gguf", bytes), &whole).message, "");
    EXPECT_EQ(whole.copy_front(300000).message, "");
    whole.close_file();
    EXPECT(whole.bytes().back() == std::byte{7});
}

TEST(metadata_beyond_any_models_is_refused) {
    auto message = [](const GgufBytes& file) {
        std::vector<std::byte> bytes = file.bytes();
        Gguf parsed;
        return Gguf::parse(bytes, &parsed).message;
    };
    GgufBytes elements;
    const auto half = static_cast<size_t>(limits::GGUF_ELEMENTS_MAX / 2 + 1);
    elements.numbers("one", ValueType::u8, std::vector<uint8_t>(half));
    EXPECT_EQ(message(elements), "");
    elements.numbers("other", ValueType::u8, std::vector<uint8_t>(half));
    EXPECT(message(elements).find("with key 'other' its metadata is larger") != std::string::npos);
    const std::string longest(static_cast<size_t>(limits::GGUF_STRING_BYTES_MAX), 'x');
    GgufBytes texts;
    texts.text("one", longest + "x");
    EXPECT(message(texts).find("string 0 of key 'one' is too long") != std::string::npos);
    GgufBytes many;
    for (int i = 0; i < 7; i++) many.text("key" + std::to_string(i), longest);
    many.text("tokenizer.huggingface.json", longest + longest); // which counts for nothing
    EXPECT_EQ(message(many), "");
    many.text("one more", longest);
    EXPECT(message(many).find("'one more' its metadata is larger") != std::string::npos);
}

TEST(any_type_can_be_looked_at) {
    GgufBytes file;
    file.tensor({"known", TensorType::f32, {8}, std::vector<std::byte>(32)});
    file.tensor({"other", static_cast<TensorType>(16), {256, 2}, std::vector<std::byte>(132)});
    file.tensor({"new", static_cast<TensorType>(999), {256, 2}, std::vector<std::byte>(7)});
    std::vector<std::byte> bytes = file.bytes();
    Gguf parsed;
    EXPECT(Gguf::parse(bytes, &parsed).message.find("'other' has type 16 (IQ2_XXS); supported") !=
           std::string::npos);
    EXPECT_EQ(Gguf::parse(bytes, &parsed, TensorTypes::any).message, "");
    EXPECT(is_supported(parsed.tensor("known")->type));
    EXPECT(!is_supported(parsed.tensor("other")->type) &&
           !is_supported(parsed.tensor("new")->type));
    EXPECT_EQ(std::string(tensor_type_name(parsed.tensor("other")->type)), "IQ2_XXS");
    EXPECT_EQ(parsed.tensor("other")->data.size(), 132u);
    EXPECT(parsed.tensor("new")->data.empty());
}

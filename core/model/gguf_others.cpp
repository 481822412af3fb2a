// What is not served, by its name: tensor types of the format, and what other files begin with.
#include <cstring>

#include "gguf.h"

namespace sublimate {

namespace {

struct Beginning {
    size_t at;
    std::string_view bytes;
    const char* text;
};

constexpr const char* PICKLE =
    "it is a pickle, as PyTorch writes them, which can run code and is never "
    "read; convert the model to GGUF or safetensors";
constexpr const char* COMPRESSED = "it is a compressed file; unpack it";
constexpr const char* OLD_FORMAT = "it is of the older GGML format; convert it to GGUF";
constexpr const char* WEB_PAGE = "it is a web page, saved in place of the file";

// A literal with its zero bytes.
template <size_t N>
constexpr std::string_view literal(const char (&text)[N]) {
    return {text, N - 1};
}

constexpr Beginning BEGINNINGS[] = {
    {0, literal("PK\x03\x04"),
     "it is a ZIP archive; one of PyTorch holds pickles, which can run code and are never read: "
     "convert the model to GGUF or safetensors"},
    {0, literal("\x80\x02"), PICKLE},
    {0, literal("\x80\x03"), PICKLE},
    {0, literal("\x80\x04"), PICKLE},
    {0, literal("\x80\x05"), PICKLE},
    {0, literal("\x1f\x8b"), COMPRESSED},
    {0, literal("\x28\xb5\x2f\xfd"), COMPRESSED},
    {0,
     literal("\xfd"
             "7zXZ"),
     COMPRESSED},
    {0, literal("7z\xbc\xaf"), COMPRESSED},
    {0, literal("BZh"), COMPRESSED},
    {0, literal("lmgg"), OLD_FORMAT},
    {0, literal("fmgg"), OLD_FORMAT},
    {0, literal("tjgg"), OLD_FORMAT},
    {0, literal("version https://git-lfs"),
     "it is a Git LFS pointer, which stands for the file; fetch that with git lfs pull"},
    {0, literal("<!DOCTYPE"), WEB_PAGE},
    {0, literal("<!doctype"), WEB_PAGE},
    {0, literal("<html"), WEB_PAGE},
    {8, literal("{\""), "it is a safetensors file; name the folder that it is in"},
    {0, literal("{"), "it is JSON"},
    {0, literal("\x89HDF"), "it is an HDF5 file; convert the model to GGUF or safetensors"},
    {0,
     literal("\x7f"
             "ELF"),
     "it is a program"},
    {0, literal("\0\0\0\0\0\0\0\0"), "it begins with zeros, as what was not fetched to its end"},
};

} // namespace

const OtherType* find_other_type(uint32_t number) {
    static constexpr OtherType OTHERS[] = {
        {9, "Q8_1", 32, 40},        {15, "Q8_K", 256, 292},     {16, "IQ2_XXS", 256, 66},
        {17, "IQ2_XS", 256, 74},    {18, "IQ3_XXS", 256, 98},   {19, "IQ1_S", 256, 50},
        {21, "IQ3_S", 256, 110},    {22, "IQ2_S", 256, 82},     {24, "I8", 1, 1},
        {25, "I16", 1, 2},          {26, "I32", 1, 4},          {27, "I64", 1, 8},
        {28, "F64", 1, 8},          {29, "IQ1_M", 256, 56},     {31, "Q4_0_4_4", 32, 18},
        {32, "Q4_0_4_8", 32, 18},   {33, "Q4_0_8_8", 32, 18},   {34, "TQ1_0", 256, 54},
        {35, "TQ2_0", 256, 66},     {36, "IQ4_NL_4_4", 32, 18}, {37, "IQ4_NL_4_8", 32, 18},
        {38, "IQ4_NL_8_8", 32, 18}, {40, "NVFP4", 64, 36},      {41, "Q1_0", 128, 18},
    };
    for (const OtherType& other : OTHERS)
        if (other.number == number) return &other;
    return nullptr;
}

const char* find_other_format(std::span<const std::byte> bytes) {
    for (const Beginning& beginning : BEGINNINGS) {
        const std::string_view wanted = beginning.bytes;
        if (bytes.size() >= beginning.at + wanted.size() &&
            std::memcmp(bytes.data() + beginning.at, wanted.data(), wanted.size()) == 0)
            return beginning.text;
    }
    return nullptr;
}

} // namespace sublimate

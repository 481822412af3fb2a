// Reading the front of a packed model file. Nothing in it is trusted: sections lie inside the file
// and one behind the other, and what an entry says of a piece is a kind that the kernels know.
#include "packed_file.h"

#include <cstring>

#include "../loop/page_hash.h"
#include "checked.h"
#include "quantise.h"

namespace sublimate {

namespace {

constexpr const char* AGAIN = ": convert the model again with `sublimate convert`";
constexpr uint64_t SECTION_ALIGNMENT_BYTES = 64;
// Metadata, small tensors and list of weights, which are read whole: a sparse file may claim any.
constexpr uint64_t FRONT_BYTES_MAX = uint64_t{1} << 30;
constexpr size_t LANES = 4; // of the checksum: independent, so that they overlap
constexpr size_t WORD_BYTES = sizeof(uint64_t);
constexpr uint64_t FACTOR = 0x9E3779B97F4A7C15; // odd, so that no two words become one

Status damaged(const char* what) {
    return Status::error(std::string("the packed file's ") + what + " is damaged" + AGAIN);
}

bool lies_inside(const PackedSection& section, uint64_t begin, uint64_t file_bytes) {
    uint64_t end = 0;
    return section.offset >= begin && section.offset % SECTION_ALIGNMENT_BYTES == 0 &&
           checked_add(section.offset, section.bytes, &end) && end <= file_bytes;
}

std::span<const std::byte> bytes_of(std::span<const std::byte> file, const PackedSection& section) {
    return file.subspan(section.offset, section.bytes);
}

bool known_entry(const PackedEntry& entry) {
    if (entry.is_vector != 0)
        return entry.is_vector == 1 && entry.kind == 0 && entry.offset == 0 && entry.affine == 0;
    constexpr int32_t OFFSET_MAX = 255; // of a byte
    return entry.kind >= 0 && entry.kind <= static_cast<int32_t>(cpu::LAST_KIND) &&
           entry.offset >= 0 && entry.offset <= OFFSET_MAX && (entry.affine & ~1) == 0;
}

Status read_entries(std::span<const std::byte> bytes, std::vector<PackedEntry>* entries) {
    if (bytes.size() % sizeof(PackedEntry) != 0) return damaged("list of weights");
    entries->resize(bytes.size() / sizeof(PackedEntry));
    if (!entries->empty()) std::memcpy(entries->data(), bytes.data(), bytes.size());
    for (const PackedEntry& entry : *entries)
        if (!known_entry(entry)) return damaged("list of weights");
    return Status::success();
}

bool in_order(const PackedHeader& header) {
    uint64_t begin = PACKED_PAGE_BYTES;
    for (const PackedSection* section :
         {&header.metadata, &header.small, &header.entries, &header.weights}) {
        if (!lies_inside(*section, begin, header.file_bytes)) return false;
        begin = section->offset + section->bytes;
    }
    return header.weights.offset % PACKED_ALIGNMENT_BYTES == 0 && header.weights.bytes > 0;
}

} // namespace

bool is_packed(std::span<const std::byte> file) {
    return file.size() >= WORD_BYTES && std::memcmp(file.data(), &PACKED_MAGIC, WORD_BYTES) == 0;
}

Status read_packed(std::span<const std::byte> file, PackedFile* packed,
                   const std::function<Status(uint64_t bytes)>& fetch) {
    CHECK(is_packed(file));
    PackedHeader header;
    if (file.size() < sizeof header)
        return Status::error("the packed file ends within its header: copy or convert it again");
    RETURN_IF_ERROR(fetch(sizeof header));
    std::memcpy(&header, file.data(), sizeof header);
    if (header.version != PACKED_VERSION)
        return Status::error("the packed file has format " + std::to_string(header.version) +
                             ", this Sublimate reads " + std::to_string(PACKED_VERSION) + AGAIN);
    uint64_t checksum = header.checksum;
    header.checksum = 0;
    if (section_checksum(std::as_bytes(std::span(&header, 1))) != checksum)
        return damaged("header");
    if (header.file_bytes != file.size())
        return Status::error("the packed file has " + std::to_string(file.size()) + " of its " +
                             std::to_string(header.file_bytes) +
                             " bytes: copy it again, or convert the model again");
    WeightForm form = {header.exact == 1, static_cast<Quantise>(header.quantise)};
    if (header.exact > 1 || quantise_name(form.quantise) == nullptr || !in_order(header))
        return damaged("header");
    const uint64_t front_bytes = header.entries.offset + header.entries.bytes; // inside: in_order
    if (front_bytes > FRONT_BYTES_MAX)
        return Status::error("the packed file's metadata is larger than that of any model");
    RETURN_IF_ERROR(fetch(front_bytes));
    PackedFile fresh;
    fresh.form = form;
    struct Short {
        const PackedSection& section;
        const char* name;
    };
    for (const Short& each : {Short{header.metadata, "metadata"}, Short{header.small, "metadata"},
                              Short{header.entries, "list of weights"}})
        if (section_checksum(bytes_of(file, each.section)) != each.section.checksum)
            return damaged(each.name);
    fresh.metadata = bytes_of(file, header.metadata);
    fresh.small = bytes_of(file, header.small);
    fresh.weights = bytes_of(file, header.weights);
    fresh.weights_checksum = header.weights.checksum;
    RETURN_IF_ERROR(read_entries(bytes_of(file, header.entries), &fresh.entries));
    *packed = std::move(fresh);
    return Status::success();
}

Status check_form(const PackedFile& packed, const WeightForm& asked) {
    const WeightForm& form = packed.form;
    if (form.exact != asked.exact)
        return Status::error(
            asked.exact
                ? "the file was packed without --exact: load its source, or convert that with "
                  "--exact"
                : "the file was packed with --exact: load it with --exact, or convert its source "
                  "without");
    if (asked.quantise == Quantise::none || asked.quantise == form.quantise)
        return Status::success();
    std::string name = quantise_name(asked.quantise);
    return Status::error("the file was packed without --quantize " + name +
                         ": leave it out, or convert the file's source with it");
}

uint64_t section_checksum(std::span<const std::byte> bytes) {
    uint64_t lanes[LANES] = {1, 2, 3, 4};
    size_t at = 0;
    for (; at + sizeof lanes <= bytes.size(); at += sizeof lanes) {
        uint64_t words[LANES];
        std::memcpy(words, bytes.data() + at, sizeof words);
        for (size_t i = 0; i < LANES; i++) {
            lanes[i] = (lanes[i] ^ words[i]) * FACTOR;
            lanes[i] ^= lanes[i] >> 32;
        }
    }
    uint64_t rest[LANES] = {};
    if (at < bytes.size()) std::memcpy(rest, bytes.data() + at, bytes.size() - at);
    uint64_t sum = mix_hash(bytes.size());
    for (size_t i = 0; i < LANES; i++) sum = mix_hash(sum ^ mix_hash(lanes[i] ^ mix_hash(rest[i])));
    return sum;
}

} // namespace sublimate

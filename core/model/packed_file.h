// A model file whose weights lie as they are computed with, so that loading one is a map of it.
// `sublimate convert` writes it (convert.h). In the file, all of it little-endian:
//
//   header       PackedHeader; what follows begins at PACKED_PAGE_BYTES
//   metadata     the source's GGUF header, version 3: all keys, and every tensor's name, type and
//                shape. Its offsets are those in `small`, or DETACHED. Of a folder also what its
//                other files say of text, under PACKED_TEXT_KEY
//   small        tensors that are read with the configuration, as they were
//   entries      a PackedEntry per piece of the weights, in the order of execution
//   weights      what load_weights packs (weights.h), at a multiple of PACKED_ALIGNMENT_BYTES
//
// Each section has a checksum. Those of the short ones are compared whenever the file is opened;
// that of the weights only by verify_packed, since reading them is what a map avoids. The panels
// are the same for all instruction sets, so a file that was written on one machine is read on any.
//
// defines: PackedEntry, PackedForm, PackedSection, PackedHeader, PackedFile, DETACHED,
// PACKED_TEXT_KEY, is_packed, read_packed, check_form, section_checksum
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pack.h"
#include "status.h"

namespace sublimate {

// Raised whenever the file or a panel (cpu/ops.h) changes: a file of another version is refused.
constexpr uint64_t PACKED_VERSION = 1;
constexpr uint64_t PACKED_MAGIC = 0x54414D494C425553; // "SUBLIMAT"
constexpr uint64_t PACKED_PAGE_BYTES = 4096;
constexpr uint64_t PACKED_ALIGNMENT_BYTES = uint64_t{2} << 20; // a huge page
constexpr uint64_t DETACHED = UINT64_MAX;                      // its data is not in the file
// JSON (src/sublimate/model/folder/packed_text.py).
constexpr const char* PACKED_TEXT_KEY = "sublimate.text";

// What a piece of the weights is; its name and shape follow from the model.
struct PackedEntry {
    int32_t is_vector; // plain floats, not panels
    int32_t kind;      // cpu::WeightKind; the next two as in cpu::PackedMatrix
    int32_t offset;
    int32_t affine;
};

struct PackedSection {
    uint64_t offset; // in the file
    uint64_t bytes;
    uint64_t checksum;
};

// All words, no padding.
struct PackedHeader {
    uint64_t magic = PACKED_MAGIC;
    uint64_t version = PACKED_VERSION;
    uint64_t checksum = 0; // of this header, while this is 0
    uint64_t file_bytes = 0;
    uint64_t exact = 0;    // WeightForm
    uint64_t quantise = 0; // likewise
    PackedSection metadata = {}, small = {}, entries = {}, weights = {};
};
static_assert(sizeof(PackedEntry) == 16 && sizeof(PackedHeader) == 18 * sizeof(uint64_t));
static_assert(sizeof(PackedHeader) <= PACKED_PAGE_BYTES);

// Views into the file's bytes.
struct PackedFile {
    WeightForm form;
    std::span<const std::byte> metadata;
    std::span<const std::byte> small;
    std::vector<PackedEntry> entries;
    std::span<const std::byte> weights;
    uint64_t weights_checksum = 0; // of the header; not compared
};

// By its first bytes.
bool is_packed(std::span<const std::byte> file);

// Everything that can be known without reading the weights. The message says what to do, and names
// no file. `fetch` is called before any of the first so many bytes is looked at.
Status read_packed(
    std::span<const std::byte> file, PackedFile* packed,
    const std::function<Status(uint64_t bytes)>& fetch = [](uint64_t) {
        return Status::success();
    });

// Whether it can be loaded in the form that was asked for; its own quantisation need not be named.
Status check_form(const PackedFile& packed, const WeightForm& asked);

// Shows damage, not forgery.
uint64_t section_checksum(std::span<const std::byte> bytes);

} // namespace sublimate

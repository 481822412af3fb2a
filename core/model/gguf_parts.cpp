// A model in several files: NAME-00001-of-00003.gguf and so on. Each is a GGUF file of its own with
// some of the tensors, and says so in three keys (split.no from 0, split.count and
// split.tensors.count); the first has the metadata of all.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "../loop/page_hash.h"
#include "gguf.h"

namespace sublimate {

namespace {

constexpr std::string_view SUFFIX = ".gguf";
constexpr std::string_view BETWEEN = "-of-";
constexpr size_t DIGITS = 5;

// What a part says of itself.
struct Split {
    int64_t number = 0; // from 0
    int64_t count = 1;  // 0, as files have that were joined again, means 1
    int64_t tensors = 0;
};

Status read_split(const Gguf& file, Split* split) {
    RETURN_IF_ERROR(file.integer("split.count", 0, limits::GGUF_PARTS_MAX, &split->count));
    RETURN_IF_ERROR(file.integer("split.no", 0, limits::GGUF_PARTS_MAX - 1, &split->number));
    return file.integer("split.tensors.count", 0, limits::GGUF_TENSORS_MAX, &split->tensors);
}

// What is packed has its data elsewhere than a part's tensors, and all of the model.
Status check_whole(const Gguf& file) {
    return file.packed() == nullptr
               ? Status::success()
               : Status::error("it is a packed file, which is never one of several parts");
}

std::string base_name(const std::string& path) {
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

// "-00002-of-00003.gguf"
std::string ending(int64_t number, int64_t count) {
    char text[64];
    std::snprintf(text, sizeof text, "-%05d-of-%05d", static_cast<int>(number),
                  static_cast<int>(count));
    return std::string(text) + std::string(SUFFIX);
}

// Keys that every part has for itself.
bool is_of_one_part(std::string_view key) {
    return key == "split.no" || key == "general.alignment";
}

bool equal(const GgufValue& a, const GgufValue& b) {
    return a.type == b.type && a.is_array == b.is_array && a.count == b.count &&
           std::equal(a.payload.begin(), a.payload.end(), b.payload.begin(), b.payload.end());
}

} // namespace

// Makes one model of all parts, of which `given` was opened from `path`.
class GgufParts {
public:
    GgufParts(const std::string& path, const Split& split, TensorTypes types)
        : path_(path), split_(split), types_(types) {}

    Status join(Gguf given, Gguf* whole) {
        RETURN_IF_ERROR(check_name());
        Gguf first;
        for (int64_t number = 0; number < split_.count; number++) {
            Gguf part;
            if (number == split_.number) {
                part = std::move(given);
            } else {
                RETURN_IF_ERROR(open(number, &part));
            }
            if (number == 0) {
                first = std::move(part);
            } else {
                RETURN_IF_ERROR(add(name(number), std::move(part), &first));
            }
        }
        RETURN_IF_ERROR(check_tensors(&first));
        *whole = std::move(first);
        return Status::success();
    }

private:
    // By its own name the others are found.
    Status check_name() {
        std::string own = ending(split_.number + 1, split_.count);
        if (split_.number >= split_.count)
            return Status::error(path_ + ": it says that it is part " +
                                 std::to_string(split_.number + 1) + " of " +
                                 std::to_string(split_.count));
        if (!path_.ends_with(own))
            return Status::error(path_ + ": it says that it is part " +
                                 std::to_string(split_.number + 1) + " of " +
                                 std::to_string(split_.count) + ", whose name ends in '" + own +
                                 "'; the other parts are found by that name");
        stem_ = path_.substr(0, path_.size() - own.size());
        return Status::success();
    }

    std::string name(int64_t number) const { return stem_ + ending(number + 1, split_.count); }

    Status open(int64_t number, Gguf* part) const {
        auto mapping = std::make_shared<FileMapping>();
        Status status = FileMapping::open(name(number), mapping.get());
        if (!status.ok())
            return Status::error("part " + std::to_string(number + 1) + " of " +
                                 std::to_string(split_.count) + " of " + base_name(path_) +
                                 " is missing: " + status.message);
        status = Gguf::parse_copy(mapping.get(), part, types_);
        if (status.ok()) status = check_whole(*part);
        Split own;
        if (status.ok()) status = read_split(*part, &own);
        if (status.ok() && (own.number != number || own.count != split_.count))
            status =
                Status::error("it says that it is part " + std::to_string(own.number + 1) + " of " +
                              std::to_string(own.count) + ", which is not what its name says");
        if (status.ok() && own.tensors != split_.tensors)
            status = Status::error("its split.tensors.count is " + std::to_string(own.tensors) +
                                   ", that of " + base_name(path_) + " is " +
                                   std::to_string(split_.tensors) + ": parts of two models");
        if (!status.ok()) return Status::error(name(number) + ": " + status.message);
        part->mapping_ = std::move(mapping);
        return Status::success();
    }

    static Status add(const std::string& path, Gguf part, Gguf* first) {
        for (const GgufValue& value : part.values_) {
            const GgufValue* other = first->find(value.key);
            if (other == nullptr || is_of_one_part(value.key) || equal(value, *other)) continue;
            return Status::error(path + ": its " + printable(value.key) +
                                 " is not that of the first part: parts of two models");
        }
        first->tensors_.insert(first->tensors_.end(), part.tensors_.begin(), part.tensors_.end());
        first->parts_.push_back(std::move(part.mapping_));
        return Status::success();
    }

    Status check_tensors(Gguf* first) const {
        const auto held = static_cast<int64_t>(first->tensors_.size());
        if (held > limits::GGUF_TENSORS_MAX || (split_.tensors > 0 && split_.tensors != held))
            return Status::error(path_ + ": its " + std::to_string(split_.count) + " parts hold " +
                                 std::to_string(held) +
                                 " tensors, and its split.tensors.count is " +
                                 std::to_string(split_.tensors));
        std::string_view twice = first->index_tensors();
        if (twice.empty()) return Status::success();
        return Status::error(path_ + ": tensor " + printable(twice) + " is in two of its parts");
    }

    const std::string& path_;
    const Split split_;
    const TensorTypes types_;
    std::string stem_; // of the paths of all parts
};

FileIdentity Gguf::identity() const {
    if (mapping_ == nullptr) return {};
    FileIdentity all = mapping_->identity();
    auto mix = [](auto into, auto word) {
        return static_cast<decltype(into)>(
            mix_hash(static_cast<uint64_t>(into) ^ static_cast<uint64_t>(word)));
    };
    for (const auto& mapping : parts_) {
        const FileIdentity& part = mapping->identity();
        all.device = mix(all.device, part.device);
        all.inode = mix(all.inode, part.inode);
        all.size_bytes = mix(all.size_bytes, part.size_bytes);
        all.modified_ns = mix(all.modified_ns, part.modified_ns);
        all.changed_ns = mix(all.changed_ns, part.changed_ns);
    }
    return all;
}

uint64_t Gguf::file_bytes() const {
    uint64_t sum = bytes_.size(); // of mapped memory, so it cannot wrap
    for (const auto& mapping : parts_) sum += mapping->bytes().size();
    return sum;
}

Status Gguf::open(const std::string& path, Gguf* file, TensorTypes types) {
    auto mapping = std::make_shared<FileMapping>();
    RETURN_IF_ERROR(FileMapping::open(path, mapping.get()));
    Gguf fresh;
    Split split;
    Status status = parse_copy(mapping.get(), &fresh, types);
    if (status.ok()) status = read_split(fresh, &split);
    if (!status.ok()) return Status::error(path + ": " + status.message);
    fresh.mapping_ = std::move(mapping);
    if (split.count > 1) {
        if (status = check_whole(fresh); !status.ok())
            return Status::error(path + ": " + status.message);
        return GgufParts(path, split, types).join(std::move(fresh), file);
    }
    *file = std::move(fresh);
    return Status::success();
}

} // namespace sublimate

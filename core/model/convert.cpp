// Packs a model as load_model does and writes what came out.
#include "convert.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "../check.h"
#include "../cpu/probe.h"
#include "config.h"
#include "packed_file.h"
#include "weights.h"

namespace sublimate {

namespace {

constexpr uint32_t GGUF_VERSION = 3;
constexpr uint64_t SMALL_ALIGNMENT_BYTES = 64;
// File systems that keep files in large pages make them as large as what is written at once.
constexpr size_t WRITE_BYTES = 4 * HUGE_PAGE_BYTES;
constexpr const char* PART = ".part";
constexpr int32_t LOCK_TRIES = 8;
constexpr float PACKING = 0.7f; // of all the work, as the progress tells it

uint64_t aligned(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

void put_bytes(std::vector<std::byte>* out, const void* bytes, size_t count) {
    const size_t at = out->size();
    out->resize(at + count);
    if (count > 0) std::memcpy(out->data() + at, bytes, count);
}

template <class Number>
void put(std::vector<std::byte>* out, Number number) {
    put_bytes(out, &number, sizeof number);
}

void put_text(std::vector<std::byte>* out, std::string_view text) {
    put(out, uint64_t{text.size()});
    put_bytes(out, text.data(), text.size());
}

// The source's header, with the data of what is small behind each other in `small`. text: under a
// key of its own, if there is any.
std::vector<std::byte> header_of(const Gguf& file, const std::string& text,
                                 std::vector<std::byte>* small) {
    std::vector<std::byte> out;
    put_bytes(&out, "GGUF", 4);
    put(&out, GGUF_VERSION);
    put(&out, uint64_t{file.tensors().size()});
    std::vector<GgufValue> values = file.values();
    // Of a model in parts, which this one no longer is.
    std::erase_if(values, [](const GgufValue& value) { return value.key.starts_with("split."); });
    put(&out, uint64_t{values.size() + (text.empty() ? 0 : 1)});
    if (!text.empty()) {
        put_text(&out, PACKED_TEXT_KEY);
        put(&out, static_cast<uint32_t>(ValueType::string));
        put_text(&out, text);
    }
    for (const GgufValue& value : values) {
        put_text(&out, value.key);
        if (value.is_array) put(&out, static_cast<uint32_t>(ValueType::array));
        put(&out, static_cast<uint32_t>(value.type));
        if (value.is_array) put(&out, value.count);
        put_bytes(&out, value.payload.data(), value.payload.size());
    }
    for (const GgufTensor& tensor : file.tensors()) {
        put_text(&out, tensor.name);
        put(&out, static_cast<uint32_t>(tensor.dimension_count));
        for (int32_t d = 0; d < tensor.dimension_count; d++)
            put(&out, tensor.dimensions[static_cast<size_t>(d)]);
        put(&out, static_cast<uint32_t>(tensor.type));
        if (!is_rope_tensor(tensor.name)) {
            put(&out, DETACHED);
            continue;
        }
        put(&out, uint64_t{small->size()});
        put_bytes(small, tensor.data.data(), tensor.data.size());
    }
    return out;
}

Status failed(const std::string& what, int error) {
    return Status::error(what + ": " + std::strerror(error));
}

// The file that is to appear at `target`, beside it until it is whole.
class OutputFile {
public:
    explicit OutputFile(const std::string& target) : target_(target), part_(target + PART) {}
    ~OutputFile() {
        if (fd_ < 0) return;
        unlink(part_.c_str());
        close(fd_);
    }
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    // What one that was killed has left there is written over. Whoever has the lock has the name.
    Status open(uint64_t bytes) {
        for (int32_t attempt = 0; attempt < LOCK_TRIES; attempt++) {
            int fd = ::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
            if (fd < 0) return failed("cannot write " + part_, errno);
            if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
                close(fd);
                return Status::error(part_ + " is being written by another process");
            }
            struct stat ours = {}, named = {};
            if (fstat(fd, &ours) == 0 && stat(part_.c_str(), &named) == 0 &&
                ours.st_dev == named.st_dev && ours.st_ino == named.st_ino) {
                fd_ = fd;
                return make_room(bytes);
            }
            close(fd); // another one has finished and renamed it meanwhile
        }
        return Status::error(part_ + " is being written by other processes");
    }

    Status write(uint64_t at, std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            ssize_t count = pwrite(fd_, bytes.data(), std::min(bytes.size(), WRITE_BYTES),
                                   static_cast<off_t>(at));
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) return failed("cannot write " + part_, count < 0 ? errno : ENOSPC);
            at += static_cast<uint64_t>(count);
            bytes = bytes.subspan(static_cast<size_t>(count));
        }
        return Status::success();
    }

    Status finish() {
        if (fsync(fd_) != 0) return failed("cannot write " + part_, errno);
        if (rename(part_.c_str(), target_.c_str()) != 0)
            return failed("cannot write " + target_, errno);
        close(fd_);
        fd_ = -1;
        size_t slash = target_.rfind('/');
        std::string folder = slash == std::string::npos ? "." : target_.substr(0, slash + 1);
        int folder_fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (folder_fd >= 0) {
            // Of a file system without it the name is as safe as that makes names.
            static_cast<void>(fsync(folder_fd));
            close(folder_fd);
        }
        return Status::success();
    }

private:
    // A disk that is too full says so before anything is written.
    Status make_room(uint64_t bytes) {
        if (ftruncate(fd_, 0) != 0 || ftruncate(fd_, static_cast<off_t>(bytes)) != 0)
            return failed("cannot write " + part_, errno);
        int error = fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
        if (error == ENOSPC || error == EDQUOT || error == EFBIG)
            return failed("there is no room for the " + std::to_string(bytes) + " bytes of " +
                              target_,
                          error);
        return Status::success();
    }

    std::string target_, part_;
    int fd_ = -1;
};

PackedSection section(uint64_t offset, std::span<const std::byte> bytes) {
    return {offset, bytes.size(), section_checksum(bytes)};
}

Status write_packed(const Gguf& file, const std::string& text, const Weights& weights,
                    const std::string& target, const ConvertOptions& options) {
    std::vector<std::byte> small;
    const std::vector<std::byte> metadata = header_of(file, text, &small);
    const std::span<const std::byte> entries = std::as_bytes(std::span(weights.entries));
    const std::span<const std::byte> data(weights.data, static_cast<size_t>(weights.bytes));
    PackedHeader header;
    header.exact = options.form.exact ? 1 : 0;
    header.quantise = static_cast<uint64_t>(options.form.quantise);
    uint64_t at = PACKED_PAGE_BYTES;
    auto place = [&](std::span<const std::byte> bytes, uint64_t alignment) {
        PackedSection placed = section(aligned(at, alignment), bytes);
        at = placed.offset + placed.bytes;
        return placed;
    };
    header.metadata = place(metadata, SMALL_ALIGNMENT_BYTES);
    header.small = place(small, SMALL_ALIGNMENT_BYTES);
    header.entries = place(entries, SMALL_ALIGNMENT_BYTES);
    header.weights = place(data, PACKED_ALIGNMENT_BYTES);
    header.file_bytes = at;
    const std::span<const std::byte> front = std::as_bytes(std::span(&header, 1));
    header.checksum = section_checksum(front);

    OutputFile out(target);
    RETURN_IF_ERROR(out.open(header.file_bytes));
    RETURN_IF_ERROR(out.write(header.metadata.offset, metadata));
    RETURN_IF_ERROR(out.write(header.small.offset, small));
    RETURN_IF_ERROR(out.write(header.entries.offset, entries));
    RETURN_IF_ERROR(out.write(header.weights.offset, data));
    RETURN_IF_ERROR(out.write(0, front));
    return out.finish();
}

Status check_target(const std::string& source, const std::string& target, bool replace) {
    struct stat from = {}, to = {};
    if (stat(target.c_str(), &to) != 0) return Status::success();
    if (stat(source.c_str(), &from) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
        return Status::error(target + " is the model itself");
    if (!S_ISREG(to.st_mode)) return Status::error(target + " is no regular file");
    return replace ? Status::success()
                   : Status::error(target + " is there already: name another file, or --replace");
}

} // namespace

Status convert_model(const std::string& source, const std::string& target,
                     const ConvertOptions& options) {
    RETURN_IF_ERROR(check_target(source, target, options.replace));
    Gguf file;
    RETURN_IF_ERROR(Gguf::open(source, &file));
    if (file.packed() != nullptr)
        return Status::error(source + ": the file is packed already: convert what it was made of");
    return convert_joined(file, source, "", target, options);
}

Status convert_joined(const Gguf& file, const std::string& source, const std::string& text,
                      const std::string& target, const ConvertOptions& options) {
    CHECK(options.threads >= 0 && options.threads <= limits::COMPUTE_THREADS_MAX);
    CHECK(!options.form.exact || options.form.quantise == Quantise::none);
    RETURN_IF_ERROR(check_target(source, target, options.replace));
    auto told = [&](const Status& status) { return Status::error(source + ": " + status.message); };
    if (text.size() > uint64_t{limits::GGUF_TEXT_BYTES_MAX})
        return Status::error(source + ": its tokenizer is larger than that of any model");
    ModelConfig config;
    if (Status status = read_config(file, {}, &config); !status.ok()) return told(status);
    RopeTables ropes;
    if (Status status = make_rope_tables(file, config, &ropes); !status.ok()) return told(status);
    cpu::ThreadPool pool(options.threads > 0 ? options.threads : cpu::usable_cores());
    auto progress = [&](float fraction) {
        if (options.progress) options.progress(fraction * PACKING);
    };
    Weights weights;
    Status status = load_weights(file, config, options.form, {}, pool, progress, &weights);
    if (!status.ok()) return told(status);
    RETURN_IF_ERROR(write_packed(file, text, weights, target, options));
    if (options.progress) options.progress(1.0f);
    return Status::success();
}

Status verify_packed(const std::string& path) {
    Gguf file;
    RETURN_IF_ERROR(Gguf::open(path, &file));
    if (file.packed() == nullptr)
        return Status::error(path + " is not packed: only what `sublimate convert` has written "
                                    "holds a checksum");
    file.mapping()->expect_reads(file.packed()->weights);
    if (section_checksum(file.packed()->weights) != file.packed()->weights_checksum)
        return Status::error(path + ": the packed weights are damaged: convert the model again");
    return Status::success();
}

} // namespace sublimate

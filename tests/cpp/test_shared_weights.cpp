// Weights that several processes map: the same bits as packed ones, from one place that nobody can
// write; and everything that is of another file, form or build is packed anew.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/model/shared_memory.h"
#include "test.h"
#include "tiny_llama.h"

namespace {

using namespace sublimate;
using namespace sublimate::test;

constexpr size_t HEADER_BYTES = 128;

std::shared_ptr<LoadedModel> load(const std::string& path, Sharing sharing, int fd = -1,
                                  bool exact = false) {
    LoadOptions options;
    options.exact = exact;
    options.threads = 2;
    options.share = {sharing, fd};
    std::shared_ptr<LoadedModel> model;
    Status status = load_model(path, options, &model);
    CHECK_BECAUSE(status.ok(), status.message.c_str());
    return model;
}

bool same_bytes(const LoadedModel& a, const LoadedModel& b) {
    return a.weights.bytes == b.weights.bytes && a.weights.data != b.weights.data &&
           std::memcmp(a.weights.data, b.weights.data, static_cast<size_t>(a.weights.bytes)) == 0;
}

std::vector<float> logits_of(const LoadedModel& model) {
    std::vector<float> logits;
    CHECK(compute_logits(model, {1, 5, 9, 33, 7}, Arithmetic::prompt, 0, &logits).ok());
    return logits;
}

// What another process could hand over: these bytes, sealed in this way.
struct Handed {
    Handed(const std::vector<std::byte>& bytes, int seals) {
        fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK(fd >= 0);
        CHECK(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
        CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
    }
    ~Handed() { close(fd); }
    int fd;
};

constexpr int SEALED = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

std::vector<std::byte> bytes_of(const LoadedModel& model) {
    const SharedMemory& shared = model.weights.shared;
    return {shared.data(), shared.data() + shared.size()};
}

} // namespace

TEST(shared_and_reused_weights_are_the_packed_ones) {
    for (TensorType type : {TensorType::q4_1, TensorType::f32, TensorType::q8_0, TensorType::q6_k})
        for (bool exact : {false, true}) {
            TemporaryFile file(tiny_file(tiny_of_type(type)));
            auto packed = load(file.path(), Sharing::never, -1, exact);
            auto shared = load(file.path(), Sharing::always, -1, exact);
            auto reused = load(file.path(), Sharing::always, shared->weights.shared.fd(), exact);
            EXPECT(packed->weights.shared.data() == nullptr && packed->weights.shared.fd() == -1);
            EXPECT(!shared->weights.reused && reused->weights.reused);
            EXPECT(same_bytes(*packed, *shared) && same_bytes(*packed, *reused));
            EXPECT(logits_of(*packed) == logits_of(*shared));
            EXPECT(logits_of(*packed) == logits_of(*reused));
            EXPECT_EQ(shared->weights.shared.huge_pages(), reused->weights.shared.huge_pages());
            // Handed on by one that reused, when the first is gone.
            shared.reset();
            auto again = load(file.path(), Sharing::never, reused->weights.shared.fd(), exact);
            EXPECT(again->weights.reused && same_bytes(*packed, *again));
        }
}

TEST(where_it_is_free_means_huge_pages) {
    TemporaryFile file(tiny_file({}));
    auto model = load(file.path(), Sharing::where_free);
    bool shared = model->weights.shared.data() != nullptr;
    EXPECT_EQ(shared, model->weights.shared.huge_pages());
    EXPECT_EQ(shared, model->weights.own.data() == nullptr);
    auto always = load(file.path(), Sharing::always);
    if (one_memory_node()) EXPECT_EQ(shared, always->weights.shared.huge_pages());
}

TEST(nobody_can_write_shared_weights) {
    TemporaryFile file(tiny_file({}));
    auto model = load(file.path(), Sharing::always);
    int fd = model->weights.shared.fd();
    auto bytes = static_cast<size_t>(model->weights.shared.size());
    EXPECT(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    int word = 1;
    EXPECT(pwrite(fd, &word, sizeof word, HEADER_BYTES) < 0);
    EXPECT(ftruncate(fd, 0) != 0 && ftruncate(fd, 1 << 30) != 0);
    EXPECT(fcntl(fd, F_ADD_SEALS, 0) != 0);
}

TEST(what_is_of_something_else_is_packed_anew) {
    TemporaryFile file(tiny_file({}));
    auto model = load(file.path(), Sharing::always);
    int fd = model->weights.shared.fd();
    EXPECT(!load(file.path(), Sharing::never, fd, true)->weights.reused); // another form
    TinyLlama other;
    other.seed = 2;
    TemporaryFile same_shape(tiny_file(other));
    auto packed = load(same_shape.path(), Sharing::never, fd);
    EXPECT(!packed->weights.reused);
    EXPECT(!same_bytes(*packed, *model));
    other.layers = 1;
    EXPECT(!load(TemporaryFile(tiny_file(other)).path(), Sharing::never, fd)->weights.reused);
    for (int none : {-1, 9999, 0}) EXPECT(!load(file.path(), Sharing::never, none)->weights.reused);
    // The file was written again since, with the same content or not.
    const timespec times[] = {{0, UTIME_OMIT}, {1'000'000'000, 0}};
    CHECK(utimensat(AT_FDCWD, file.path().c_str(), times, 0) == 0);
    EXPECT(!load(file.path(), Sharing::never, fd)->weights.reused);
}

TEST(what_does_not_hold_is_packed_anew) {
    TemporaryFile file(tiny_file({}));
    auto model = load(file.path(), Sharing::always);
    const std::vector<std::byte> good = bytes_of(*model);
    auto reused = [&](const std::vector<std::byte>& bytes, int seals) {
        Handed handed(bytes, seals);
        auto loaded = load(file.path(), Sharing::never, handed.fd);
        EXPECT(same_bytes(*loaded, *model));
        return loaded->weights.reused;
    };
    EXPECT(reused(good, SEALED));
    EXPECT(!reused(good, F_SEAL_SHRINK | F_SEAL_GROW)); // could be written
    EXPECT(!reused(good, F_SEAL_SHRINK | F_SEAL_WRITE));
    EXPECT(!reused({}, SEALED));
    EXPECT(!reused(std::vector<std::byte>(good.size() - 4096), SEALED));
    EXPECT(!reused(std::vector<std::byte>(good.size()), SEALED));
    for (size_t word = 0; word < 10; word++) { // of the header: each decides
        std::vector<std::byte> wrong = good;
        wrong[8 * word] ^= std::byte{1};
        EXPECT(!reused(wrong, SEALED));
    }
    // Another way to pack, or another content: seen in the first and in the last panel of each
    // tensor.
    const cpu::PackedMatrix& embedding = model->weights.embedding;
    const auto* norm = reinterpret_cast<const std::byte*>(model->weights.final_norm);
    for (const std::byte* at :
         {embedding.data, embedding.data + (embedding.panels - 1) * embedding.panel_bytes, norm}) {
        std::vector<std::byte> wrong = good;
        wrong[static_cast<size_t>(at - model->weights.shared.data())] ^= std::byte{1};
        EXPECT(!reused(wrong, SEALED));
    }
}

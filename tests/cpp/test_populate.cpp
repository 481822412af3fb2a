// Memory that becomes real ahead of its use, and not far ahead of it.
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "core/model/memory.h"
#include "core/model/populate.h"
#include "test.h"

namespace {

using namespace sublimate;
using namespace sublimate::cpu;

constexpr int64_t CHUNK = PopulateAhead::CHUNK_BYTES;
constexpr int32_t STRIPES = 3;
constexpr int64_t AHEAD = 2 * CHUNK;              // of one
constexpr int64_t STRIPE = 3 * AHEAD + CHUNK / 2; // ends within a chunk

// Real bytes of [from, from + bytes).
int64_t resident(std::byte* from, int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    std::vector<unsigned char> pages(static_cast<size_t>(bytes / page));
    EXPECT_EQ(mincore(from, static_cast<size_t>(bytes), pages.data()), 0);
    int64_t count = 0;
    for (unsigned char each : pages) count += each & 1;
    return count * page;
}

// Up to a minute: others go before the thread.
bool becomes(const PopulateAhead& ahead, int64_t bytes) {
    for (int32_t i = 0; i < 60'000 && ahead.populated_bytes() < bytes; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ahead.populated_bytes() == bytes;
}

} // namespace

TEST(populates_a_little_ahead_and_no_more) {
    AnonymousMemory memory;
    EXPECT(AnonymousMemory::map(STRIPE * STRIPES, "a test", &memory).ok());
    PopulateAhead ahead(memory.data(), STRIPE, STRIPES, AHEAD * STRIPES, AHEAD * STRIPES);
    EXPECT(becomes(ahead, AHEAD));
    for (int32_t i : {0, 1, STRIPES - 1})
        EXPECT_EQ(resident(memory.data() + i * STRIPE, AHEAD), AHEAD);
    // One huge page may reach over the end.
    EXPECT_EQ(resident(memory.data() + 2 * STRIPE + AHEAD + CHUNK, CHUNK), 0);

    ahead.reached(1); // news of any use are worth a chunk
    ahead.reached(CHUNK / 2);
    EXPECT(becomes(ahead, AHEAD + 1));
    ahead.reached(3 * CHUNK);
    EXPECT(becomes(ahead, 3 * CHUNK + AHEAD));
    EXPECT_EQ(resident(memory.data() + STRIPE, 3 * CHUNK + AHEAD), 3 * CHUNK + AHEAD);
    ahead.reached(STRIPE);
    EXPECT(becomes(ahead, STRIPE));
}

TEST(f57_what_is_ahead_follows_what_was_used) {
    AnonymousMemory memory;
    constexpr int64_t WHOLE = 16 * CHUNK;
    EXPECT(AnonymousMemory::map(WHOLE, "a test", &memory).ok());
    PopulateAhead ahead(memory.data(), WHOLE, 1, CHUNK, 4 * CHUNK);
    EXPECT(becomes(ahead, CHUNK));
    ahead.reached(2 * CHUNK);
    EXPECT(becomes(ahead, 4 * CHUNK));
    ahead.reached(8 * CHUNK);
    EXPECT(becomes(ahead, 12 * CHUNK));
    EXPECT_EQ(resident(memory.data(), WHOLE), 12 * CHUNK);
}

TEST(what_was_written_stays) {
    AnonymousMemory memory;
    EXPECT(AnonymousMemory::map(STRIPE, "a test", &memory).ok());
    memory.data()[CHUNK + 5] = std::byte{7};
    PopulateAhead ahead(memory.data(), STRIPE, 1, AHEAD, AHEAD);
    ahead.reached(STRIPE);
    EXPECT(becomes(ahead, STRIPE));
    EXPECT(memory.data()[CHUNK + 5] == std::byte{7});
    EXPECT(memory.data()[CHUNK + 6] == std::byte{0});
}

TEST(ends_in_the_middle_of_its_work) {
    for (int32_t i = 0; i < 20; i++) {
        AnonymousMemory memory;
        EXPECT(AnonymousMemory::map(STRIPE * STRIPES, "a test", &memory).ok());
        PopulateAhead ahead(memory.data(), STRIPE, STRIPES, AHEAD * STRIPES, AHEAD * STRIPES);
        if (i % 2 == 0) ahead.reached(STRIPE);
    }
}

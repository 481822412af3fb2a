// The prefix table: it tells just the pages that the page cache would find, through publishing,
// eviction and forgetting; readers in other processes and threads; memory that is none.
#include "../../core/ring/prefix_memory.h"
#include "loop_bench.h"
#include "test.h"

#include <atomic>
#include <fcntl.h>
#include <map>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace sublimate {
namespace {

using test::LoopBench;
using test::SeenRow;

constexpr int32_t PAGE = limits::PAGE_TOKENS;

PrefixMemory make_table(int32_t pages) {
    PrefixMemory memory;
    CHECK(PrefixMemory::create(PageStore::table_entries(pages), memory) == nullptr);
    return memory;
}

PrefixMemory reader_of(const PrefixMemory& memory) {
    PrefixMemory reader;
    const char* why = PrefixMemory::attach(memory.fd(), reader);
    CHECK_BECAUSE(why == nullptr, why);
    return reader;
}

LoopConfig config_with(const PrefixMemory& memory, int32_t pages) {
    LoopConfig config = test::small_config();
    config.pages = pages;
    config.prefixes = memory.view();
    return config;
}

std::vector<uint64_t> chain_of(const LoopConfig& config, const std::vector<int32_t>& tokens,
                               const KvKey& key) {
    int32_t pages = (static_cast<int32_t>(tokens.size()) - 1) / PAGE;
    std::vector<uint64_t> chain(static_cast<size_t>(pages));
    PageHasher{config.salt, config.hash_mask}.chain(key, tokens.data(), pages, chain.data());
    return chain;
}

int32_t told(const PrefixMemory& reader, const std::vector<uint64_t>& chain) {
    return prefix_pages(reader.view(), chain.data(), static_cast<int32_t>(chain.size()));
}

// The slow twin: all pages of the store, and all words of the table, as two bags.
bool tells_just_what_is_found(const PrefixMemory& reader, const PageStore& store) {
    std::map<uint64_t, int32_t> bag;
    for (int32_t page = 0; page < store.page_count(); page++) {
        if (!store.at(page).published) continue;
        bag[prefix_digest(store.at(page).hash)]++;
        if (!prefix_has(reader.view(), store.at(page).hash)) return false;
    }
    for (uint32_t i = 0; i <= reader.view().mask; i++) {
        uint64_t digest = load_acquire(reader.view().digests + i);
        if (digest != 0) bag[digest]--;
    }
    for (const auto& [digest, count] : bag)
        if (count != 0) return false;
    return true;
}

int32_t cached_tokens(const std::vector<SeenRow>& rows, int32_t slot) {
    for (const SeenRow& seen : rows)
        if (seen.row.slot == slot && (seen.row.flags & ROW_ADMITTED) != 0) return seen.row.token;
    return -1;
}

// Requests of three tenants over a few prompts, in a cache that is too small for all of them.
TEST(what_is_told_is_what_the_next_request_finds) {
    std::mt19937 random(7);
    PrefixMemory memory = make_table(20);
    PrefixMemory reader = reader_of(memory);
    LoopConfig config = config_with(memory, 20);
    LoopBench bench(config);
    int32_t hits = 0;
    int32_t misses = 0;
    for (int32_t round = 0; round < 400; round++) {
        RequestHeader h = LoopBench::header(1);
        h.tenant_low = static_cast<int32_t>(random() % 3);
        std::vector<int32_t> tokens =
            LoopBench::prompt(1 + static_cast<int32_t>(random() % 200), random() % 4);
        int32_t pages = told(reader, chain_of(config, tokens, {h.tenant_low, 0, 0, 0}));
        Slots::Lease lease = bench.submit(h, tokens);
        std::vector<SeenRow> rows = bench.finish();
        EXPECT_EQ(cached_tokens(rows, lease.slot), pages * PAGE);
        bench.slots[0].release(lease.slot, lease.generation);
        EXPECT(tells_just_what_is_found(reader, bench.loop->state().kv.store()));
        (pages > 0 ? hits : misses)++;
    }
    EXPECT(hits > 50 && misses > 50);
    EXPECT(bench.loop->totals().evictions > 50);
}

// Several at once, with bits of the hash so few that digests repeat and probes collide.
TEST(a_prefix_ends_at_the_first_page_that_is_not_there) {
    PrefixMemory memory = make_table(16);
    const PrefixTableView& view = memory.view();
    const std::vector<uint64_t> chain = {101, 203, 305, 407};
    for (uint64_t missing = 0; missing <= chain.size(); missing++) {
        prefix_format(view);
        for (uint64_t i = 0; i < chain.size(); i++)
            if (i != missing)
                view.digests[prefix_home(chain[i], view.mask)] = prefix_digest(chain[i]);
        EXPECT_EQ(told(memory, chain), static_cast<int32_t>(missing));
    }
}

TEST(it_tells_the_truth_after_every_iteration) {
    for (uint64_t mask : {~uint64_t{0}, uint64_t{7}, uint64_t{0}}) {
        std::mt19937 random(11);
        PrefixMemory memory = make_table(24);
        PrefixMemory reader = reader_of(memory);
        LoopConfig config = config_with(memory, 24);
        config.hash_mask = mask;
        config.share_generated = mask != 7; // pages of equal hash and other provenance
        LoopBench bench(config);
        for (int32_t round = 0; round < 60; round++) {
            std::vector<Slots::Lease> leases;
            for (int32_t i = 0; i < 4; i++) {
                RequestHeader h = LoopBench::header(1 + static_cast<int32_t>(random() % 40));
                h.flags = random() % 5 == 0 ? FLAG_NO_CACHE : 0;
                leases.push_back(bench.submit(
                    h, LoopBench::prompt(1 + static_cast<int32_t>(random() % 150), random() % 6)));
            }
            do {
                bench.iterate();
                EXPECT(tells_just_what_is_found(reader, bench.loop->state().kv.store()));
            } while (bench.loop->outstanding() > 0);
            for (const Slots::Lease& lease : leases)
                bench.slots[0].release(lease.slot, lease.generation);
        }
        EXPECT(bench.loop->totals().evictions > 0);
    }
}

TEST(pages_of_a_failed_request_vanish) {
    PrefixMemory memory = make_table(64);
    PrefixMemory reader = reader_of(memory);
    LoopConfig config = config_with(memory, 64);
    sim::ModelTraits traits;
    traits.nan_period = 1; // every row's logits
    LoopBench bench(config, 1, traits);
    std::vector<int32_t> tokens = LoopBench::prompt(3 * PAGE + 1);
    bench.submit(LoopBench::header(4), tokens);
    bench.finish();
    EXPECT_EQ(told(reader, chain_of(config, tokens, {0, 0, 0, 0})), 0);
    EXPECT(tells_just_what_is_found(reader, bench.loop->state().kv.store()));
}

TEST(another_tenant_or_secret_or_adapter_is_told_nothing) {
    PrefixMemory memory = make_table(64);
    PrefixMemory reader = reader_of(memory);
    LoopConfig config = config_with(memory, 64);
    LoopBench bench(config);
    RequestHeader h = LoopBench::header(1);
    h.tenant_low = 5;
    h.tenant_high = 6;
    std::vector<int32_t> tokens = LoopBench::prompt(4 * PAGE);
    bench.submit(h, tokens);
    bench.finish();
    EXPECT_EQ(told(reader, chain_of(config, tokens, {5, 6, 0, 0})), 3); // never the last token's
    for (KvKey key : {KvKey{9, 6, 0, 0}, KvKey{5, 9, 0, 0}, KvKey{5, 6, 1, 0}, KvKey{5, 6, 0, 1}})
        EXPECT_EQ(told(reader, chain_of(config, tokens, key)), 0);
    LoopConfig other = config;
    other.salt++;
    EXPECT_EQ(told(reader, chain_of(other, tokens, {5, 6, 0, 0})), 0);
    tokens[0]++;
    EXPECT_EQ(told(reader, chain_of(config, tokens, {5, 6, 0, 0})), 0);
}

TEST(the_load_is_that_of_the_last_iteration) {
    PrefixMemory memory = make_table(16);
    LoopConfig config = config_with(memory, 16);
    config.sequences_max = 1;
    config.policy.profiles[1].step_rows_max = 64; // the prompt takes several steps
    PrefixMemory reader = reader_of(memory);
    const PrefixLoad& load = reader.view().control->load;
    LoopBench bench(config);
    EXPECT_EQ(load.pages_total, 16u);
    EXPECT_EQ(load.pages_available, 16u);
    EXPECT_EQ(load.prompt_row_ps, static_cast<uint64_t>(config.cost.prompt_row_ps));
    bench.submit(LoopBench::header(2), LoopBench::prompt(200));
    bench.submit(LoopBench::header(2), LoopBench::prompt(100, 3));
    bench.iterate();
    EXPECT_EQ(load.running, 1u);
    EXPECT_EQ(load.waiting, 1u);
    const Sequence& first = bench.loop->state().sequences[bench.loop->state().running[0]];
    EXPECT(first.computed > 0 && first.computed < 200);
    EXPECT_EQ(load.prompt_tokens_left, static_cast<uint64_t>(300 - first.computed));
    EXPECT_EQ(load.pages_available, static_cast<uint64_t>(16 - pages_for(201)));
    bench.finish();
    bench.iterate();
    EXPECT_EQ(load.running + load.waiting + load.prompt_tokens_left, 0u);
    EXPECT_EQ(load.pages_available, 16u);
}

// What a reader sees while the loop writes is some mixture; it never runs off, and what stays in
// the cache is found.
TEST(a_reader_beside_the_writer_finds_what_stays) {
    PrefixMemory memory = make_table(32);
    LoopConfig config = config_with(memory, 32);
    LoopBench bench(config);
    std::vector<int32_t> kept = LoopBench::prompt(2 * PAGE + 1, 1);
    std::vector<uint64_t> chain = chain_of(config, kept, {0, 0, 0, 0});
    std::atomic<bool> stop{false};
    std::atomic<int64_t> looks{0};
    std::atomic<int64_t> found{0};
    PrefixMemory reader = reader_of(memory);
    std::thread other([&] {
        while (!stop.load()) {
            looks++;
            found += told(reader, chain) == 2 ? 1 : 0;
        }
    });
    for (int32_t round = 0; round < 300; round++) {
        bool again = round % 2 == 0; // never the oldest in the cache
        Slots::Lease lease =
            bench.submit(LoopBench::header(1), again ? kept : LoopBench::prompt(130, round % 48));
        bench.finish();
        bench.slots[0].release(lease.slot, lease.generation);
    }
    EXPECT_EQ(told(reader, chain), 2);
    while (looks.load() < 10 || found.load() == 0) std::this_thread::yield();
    stop.store(true);
    other.join();
    EXPECT(found.load() > 0);
}

TEST(a_writer_that_broke_does_not_hold_a_reader) {
    PrefixMemory memory = make_table(2);
    for (uint32_t i = 0; i <= memory.view().mask; i++) memory.view().digests[i] = 12345;
    PrefixMemory reader = reader_of(memory);
    EXPECT(!prefix_has(reader.view(), 99));
    EXPECT(prefix_has(reader.view(), 12344));
}

TEST(readers_can_neither_write_nor_resize) {
    PrefixMemory memory = make_table(8);
    auto bytes = static_cast<size_t>(prefix_layout_bytes(PageStore::table_entries(8)));
    void* writable = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0);
    EXPECT(writable == MAP_FAILED);
    uint64_t word = 1;
    EXPECT(pwrite(memory.fd(), &word, sizeof word, 0) < 0);
    EXPECT(ftruncate(memory.fd(), 0) != 0);
    memory.view().digests[0] = 3; // the writer's mapping stays
    EXPECT_EQ(reader_of(memory).view().digests[0], 3u);
}

TEST(memory_that_is_no_prefix_table_is_refused) {
    PrefixMemory reader;
    EXPECT(PrefixMemory::attach(-1, reader) != nullptr);
    int64_t bytes = prefix_layout_bytes(8);
    auto attach = [&](int64_t size, int seals, const PrefixControl* head) {
        int fd = memfd_create("test", MFD_ALLOW_SEALING);
        CHECK(fd >= 0 && ftruncate(fd, size) == 0);
        if (head) CHECK(pwrite(fd, head, sizeof *head, 0) == int64_t{sizeof *head});
        CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
        const char* why = PrefixMemory::attach(fd, reader);
        close(fd);
        return why;
    };
    int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
    PrefixControl head = {PREFIX_MAGIC, PREFIX_VERSION, 8, {}};
    EXPECT(attach(bytes, sealed, &head) == nullptr);
    EXPECT(attach(bytes, F_SEAL_GROW, &head) != nullptr);
    EXPECT(attach(bytes, sealed, nullptr) != nullptr);
    EXPECT(attach(bytes + 8, sealed, &head) != nullptr);
    EXPECT(attach(16, sealed, nullptr) != nullptr);
    EXPECT(attach(prefix_layout_bytes(limits::PREFIX_ENTRIES_MAX) + 1, sealed, &head) != nullptr);
    for (uint64_t entries :
         {uint64_t{0}, uint64_t{7}, uint64_t{16}, ~uint64_t{0}, uint64_t{8} | uint64_t{1} << 63}) {
        PrefixControl wrong = head;
        wrong.entries = entries;
        EXPECT(attach(bytes, sealed, &wrong) != nullptr);
    }
    PrefixControl old = head;
    old.version++;
    EXPECT(attach(bytes, sealed, &old) != nullptr);
}

} // namespace
} // namespace sublimate

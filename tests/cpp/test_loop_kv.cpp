// Paged KV: prefix sharing, verification of every hit, reservation, eviction order, the audit.
#include "../../core/loop/kv.h"
#include "test.h"

#include <vector>

namespace sublimate {
namespace {

constexpr int32_t PAGE = limits::PAGE_TOKENS;
constexpr int32_t VOCABULARY = 1000;

// A cache with page tables of its own.
struct Pool {
    explicit Pool(int32_t pages, uint64_t hash_mask = ~uint64_t{0}, bool share_generated = true,
                  bool same_arithmetic = false)
        : pages(static_cast<size_t>(pages)),
          table(static_cast<size_t>(PageStore::table_entries(pages))),
          owners(static_cast<size_t>(pages)) {
        cache.start({pages, 42, hash_mask, share_generated, same_arithmetic}, this->pages.data(),
                    table.data());
    }

    std::vector<Page> pages;
    std::vector<int32_t> table;
    std::vector<int32_t> owners;
    KvCache cache;
};

struct Row {
    explicit Row(std::vector<int32_t> prompt, KvKey key = {1, 2, 0, 0}, bool sharing = true)
        : tokens(std::move(prompt)), ids(64) {
        table = {ids.data(), 0, 0, key, sharing};
    }
    PromptTokens prompt() const {
        return {tokens.data(), static_cast<int32_t>(tokens.size()), VOCABULARY};
    }
    bool admit(Pool& pool, int32_t more = 0) {
        int32_t needed = pages_for(static_cast<int32_t>(tokens.size()) + more);
        bool admitted = pool.cache.admit(table, prompt(), needed, true);
        computed = table.count * PAGE;
        return admitted;
    }
    void compute(Pool& pool, int32_t rows, bool generated = false) {
        int32_t before = computed;
        for (int32_t i = 0; i < rows; i++, computed++)
            pool.cache.append(table, computed, tokens[static_cast<size_t>(computed)], generated);
        pool.cache.commit(table, before, computed);
    }
    void compute_rest(Pool& pool) { compute(pool, static_cast<int32_t>(tokens.size()) - computed); }

    std::vector<int32_t> tokens;
    std::vector<int32_t> ids;
    PageTable table;
    int32_t computed = 0;
};

std::vector<int32_t> counting(int32_t count, int32_t first = 0) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; i++) tokens.push_back((first + i * 7) % VOCABULARY);
    return tokens;
}

const char* audit(Pool& pool, std::vector<const Row*> rows) {
    std::vector<const PageTable*> tables;
    for (const Row* row : rows) tables.push_back(&row->table);
    return pool.cache.audit(tables.data(), static_cast<int32_t>(tables.size()), pool.owners.data());
}

TEST(a_finished_prompt_is_found_again_but_never_its_last_token) {
    Pool pool(16);
    Row first(counting(2 * PAGE));
    EXPECT(first.admit(pool));
    first.compute_rest(pool);
    pool.cache.release(first.table, false);
    EXPECT_EQ(pool.cache.store().cached_count(), 2);
    Row same(counting(2 * PAGE));
    EXPECT(same.admit(pool));
    EXPECT_EQ(same.table.count, 1); // the second page holds the last token
    Row longer(counting(2 * PAGE + 1));
    EXPECT(longer.admit(pool));
    EXPECT_EQ(longer.table.count, 2);
    EXPECT(audit(pool, {&same, &longer}) == nullptr);
}

TEST(pages_of_a_running_prompt_are_adopted_at_the_next_border) {
    Pool pool(16);
    Row leader(counting(3 * PAGE + 5));
    Row follower(counting(3 * PAGE + 5));
    EXPECT(leader.admit(pool) && follower.admit(pool));
    uint64_t leader_hash = pool.cache.next_page_hash(leader.table, leader.prompt(), 0);
    EXPECT(leader_hash != 0);
    EXPECT_EQ(pool.cache.next_page_hash(follower.table, follower.prompt(), 0), leader_hash);
    leader.compute(pool, 2 * PAGE + 3);
    EXPECT_EQ(pool.cache.reserved(), 4 - 3 + 4); // the leader has taken three of its pages
    EXPECT_EQ(pool.cache.adopt(follower.table, follower.prompt()), 2);
    EXPECT_EQ(pool.cache.reserved(), 4 - 3 + 2);
    EXPECT_EQ(follower.table.pages[1], leader.table.pages[1]);
    EXPECT_EQ(pool.cache.next_page_hash(follower.table, follower.prompt(), 2 * PAGE),
              pool.cache.next_page_hash(leader.table, leader.prompt(), 2 * PAGE + 3));
    EXPECT(audit(pool, {&leader, &follower}) == nullptr);
}

TEST(two_that_computed_the_same_page_keep_one) {
    Pool pool(16);
    Row a(counting(2 * PAGE + 2));
    Row b(counting(2 * PAGE + 2));
    EXPECT(a.admit(pool) && b.admit(pool));
    a.compute(pool, PAGE);
    int32_t free_before = pool.cache.store().free_count();
    b.compute(pool, PAGE);
    EXPECT_EQ(b.table.pages[0], a.table.pages[0]);
    EXPECT_EQ(pool.cache.store().free_count(), free_before);
    EXPECT(audit(pool, {&a, &b}) == nullptr);
}

TEST(a_hit_compares_tokens_parent_and_key_even_if_all_hashes_collide) {
    Pool pool(64, 0);
    Row first(counting(2 * PAGE + 1));
    EXPECT(first.admit(pool));
    first.compute_rest(pool);
    Row other_tokens(counting(2 * PAGE + 1, 1));
    EXPECT(other_tokens.admit(pool));
    EXPECT_EQ(other_tokens.table.count, 0);
    std::vector<int32_t> mixed = counting(2 * PAGE + 1);
    mixed[0]++; // another first page, the same second one
    Row other_parent(mixed);
    EXPECT(other_parent.admit(pool));
    other_parent.compute(pool, PAGE);
    EXPECT_EQ(pool.cache.adopt(other_parent.table, other_parent.prompt()), 0);
    for (KvKey key : {KvKey{9, 2, 0, 0}, KvKey{1, 9, 0, 0}, KvKey{1, 2, 9, 0}, KvKey{1, 2, 0, 9}}) {
        Row other_key(counting(2 * PAGE + 1), key);
        EXPECT(other_key.admit(pool));
        EXPECT_EQ(other_key.table.count, 0);
        pool.cache.release(other_key.table, false);
    }
    Row same(counting(2 * PAGE + 1));
    EXPECT(same.admit(pool));
    EXPECT_EQ(same.table.count, 2);
}

TEST(every_part_of_the_key_and_every_token_is_in_the_hash) {
    PageHasher hasher = {42, ~uint64_t{0}};
    std::vector<int32_t> tokens = counting(PAGE);
    const KvKey key = {1, 2, 3, 4};
    const uint64_t hash = hasher.page(hasher.root(key), tokens.data());
    EXPECT_EQ(hasher.page(hasher.root(key), tokens.data()), hash);
    for (KvKey other :
         {KvKey{9, 2, 3, 4}, KvKey{1, 9, 3, 4}, KvKey{1, 2, 9, 4}, KvKey{1, 2, 3, 9}}) {
        EXPECT(hasher.root(other) != hasher.root(key));
        EXPECT(!same_key(other, key));
    }
    for (size_t i = 0; i < tokens.size(); i++) {
        tokens[i]++;
        EXPECT(hasher.page(hasher.root(key), tokens.data()) != hash);
        tokens[i]--;
    }
    PageHasher salted = {43, ~uint64_t{0}};
    EXPECT(salted.root(key) != hasher.root(key));
}

TEST(a_private_request_neither_reads_nor_publishes) {
    Pool pool(16);
    Row secret(counting(2 * PAGE + 1), {1, 2, 0, 0}, false);
    EXPECT(secret.admit(pool));
    secret.compute_rest(pool);
    EXPECT_EQ(pool.cache.next_page_hash(secret.table, secret.prompt(), 0), 0u);
    pool.cache.release(secret.table, false);
    EXPECT_EQ(pool.cache.store().cached_count(), 0);
    EXPECT_EQ(pool.cache.store().free_count(), 16);
}

TEST(wrong_drafts_go_back_to_the_reservation) {
    Pool pool(8);
    Row row(counting(PAGE - 2));
    EXPECT(row.admit(pool, 2 * PAGE)); // 3 pages
    row.compute_rest(pool);
    auto draft = [&](int32_t first, int32_t count) {
        for (int32_t i = 0; i < count; i++) pool.cache.append(row.table, first + i, 900 + i, true);
    };
    draft(PAGE - 2, PAGE + 6); // into the third page
    EXPECT_EQ(row.table.count, 3);
    EXPECT_EQ(row.table.reserved, 0);
    pool.cache.commit(row.table, PAGE - 2, PAGE - 1);
    pool.cache.take_back(row.table, PAGE - 1); // one of them was right
    EXPECT_EQ(row.table.count, 1);
    EXPECT_EQ(row.table.reserved, 2);
    EXPECT_EQ(pool.cache.reserved(), 2);
    EXPECT_EQ(pool.cache.store().free_count(), 7);
    EXPECT(audit(pool, {&row}) == nullptr);
    draft(PAGE - 1, 2);
    EXPECT_EQ(pool.cache.token_at(row.table, PAGE - 1), 900);
    pool.cache.commit(row.table, PAGE - 1, PAGE + 1);
    pool.cache.take_back(row.table, PAGE + 1);
    EXPECT_EQ(row.table.count, 2);
    EXPECT(pool.cache.store().at(row.table.pages[0]).published);
    EXPECT(audit(pool, {&row}) == nullptr);
}

TEST(admission_reserves_and_refuses_without_a_trace) {
    Pool pool(4);
    Row big(counting(PAGE), {1, 2, 0, 0});
    EXPECT(big.admit(pool, 2 * PAGE)); // 3 pages
    EXPECT_EQ(pool.cache.reserved(), 3);
    Row late(counting(PAGE + 1, 5)); // 2 pages
    EXPECT(!late.admit(pool));
    EXPECT_EQ(late.table.count, 0);
    EXPECT_EQ(pool.cache.reserved(), 3);
    EXPECT(audit(pool, {&big}) == nullptr);
    EXPECT(pool.cache.could_ever_fit(4) && !pool.cache.could_ever_fit(5));
    pool.cache.release(big.table, false);
    EXPECT(late.admit(pool));
}

TEST(eviction_takes_the_oldest_and_children_before_parents) {
    Pool pool(4);
    Row old_one(counting(2 * PAGE));
    EXPECT(old_one.admit(pool));
    old_one.compute_rest(pool);
    int32_t root = old_one.table.pages[0];
    int32_t leaf = old_one.table.pages[1];
    pool.cache.release(old_one.table, false);
    Row next(counting(3 * PAGE, 3));
    EXPECT(next.admit(pool));
    next.compute_rest(pool);
    EXPECT_EQ(pool.cache.store().evictions(), 1u);
    EXPECT(pool.cache.store().at(root).published);
    EXPECT_EQ(next.table.pages[2], leaf);
    EXPECT(audit(pool, {&next}) == nullptr);
}

// Pages of these prompts that a new request would find.
int32_t cached_pages(Pool& pool, const std::vector<int32_t>& tokens) {
    std::vector<int32_t> longer = tokens;
    longer.push_back(1); // the last token of a prompt is never found
    Row probe(longer);
    EXPECT(probe.admit(pool));
    int32_t found = probe.table.count;
    pool.cache.release(probe.table, false);
    return found;
}

TEST(eviction_follows_the_order_of_last_use) {
    constexpr int32_t PROMPTS = 4;
    Pool pool(2 * PROMPTS);
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t i = 0; i < PROMPTS; i++) {
        prompts.push_back(counting(PAGE, i));
        Row row(prompts.back());
        EXPECT(row.admit(pool));
        row.compute_rest(pool);
        pool.cache.release(row.table, false);
    }
    // Used again: 0 is now the newest but one, 2 the newest. Left in order: 1, 3, 0, 2.
    EXPECT_EQ(cached_pages(pool, prompts[0]), 1);
    EXPECT_EQ(cached_pages(pool, prompts[2]), 1);
    std::vector<int32_t> left = {1, 3, 0, 2};
    for (int32_t gone = 1; gone <= PROMPTS; gone++) {
        Row big(counting((PROMPTS + gone) * PAGE, 500 + gone), {9, gone, 0, 0}, false);
        EXPECT(big.admit(pool));
        big.compute_rest(pool);
        EXPECT_EQ(pool.cache.store().evictions(), static_cast<uint64_t>(gone));
        pool.cache.release(big.table, false);
        std::vector<int32_t> found;
        for (int32_t page = pool.cache.store().oldest(); page != NO_PAGE;
             page = pool.cache.store().at(page).newer)
            found.push_back(pool.cache.store().at(page).tokens[0]);
        std::vector<int32_t> wanted;
        for (size_t i = static_cast<size_t>(gone); i < left.size(); i++)
            wanted.push_back(prompts[static_cast<size_t>(left[i])][0]);
        EXPECT(found == wanted);
    }
    EXPECT(audit(pool, {}) == nullptr);
}

TEST(a_failed_sequence_leaves_nothing_that_could_be_found) {
    Pool pool(8);
    Row poisoned(counting(2 * PAGE + 1));
    EXPECT(poisoned.admit(pool));
    poisoned.compute_rest(pool);
    pool.cache.release(poisoned.table, true);
    EXPECT_EQ(pool.cache.store().cached_count(), 0);
    EXPECT_EQ(pool.cache.store().free_count(), 8);
}

TEST(pages_of_the_generated_arithmetic_are_kept_apart) {
    Pool exact(16, ~uint64_t{0}, false);
    Row decoded(counting(2 * PAGE + 1));
    EXPECT(decoded.admit(exact));
    decoded.compute(exact, PAGE / 2);
    decoded.compute(exact, PAGE / 2, true);
    decoded.compute(exact, PAGE); // behind a generated page
    Row prompt(counting(2 * PAGE + 1));
    EXPECT(prompt.admit(exact));
    EXPECT_EQ(prompt.table.count, 0);
    prompt.compute_rest(exact); // other bits: not merged with the generated ones
    EXPECT(prompt.table.pages[0] != decoded.table.pages[0]);
    EXPECT(prompt.table.pages[1] != decoded.table.pages[1]);
    Row other_rows(counting(2 * PAGE + 1));
    EXPECT(other_rows.admit(exact));
    EXPECT_EQ(other_rows.table.pages[0], prompt.table.pages[0]);
    EXPECT(audit(exact, {&decoded, &prompt, &other_rows}) == nullptr);

    Pool sharing(16, ~uint64_t{0}, true);
    Row again(counting(2 * PAGE + 1));
    EXPECT(again.admit(sharing));
    again.compute(sharing, 2 * PAGE + 1, true);
    Row reader(counting(2 * PAGE + 1));
    EXPECT(reader.admit(sharing));
    EXPECT_EQ(reader.table.count, 2);

    Pool same(16, ~uint64_t{0}, false, true);
    Row written(counting(2 * PAGE + 1));
    EXPECT(written.admit(same));
    written.compute(same, 2 * PAGE + 1, true);
    Row found(counting(2 * PAGE + 1));
    EXPECT(found.admit(same));
    EXPECT_EQ(found.table.count, 2);
}

TEST(reads_of_a_prompt_are_clamped_to_the_vocabulary) {
    std::vector<int32_t> wild = {-5, VOCABULARY, INT32_MAX, 3};
    PromptTokens prompt = {wild.data(), 4, VOCABULARY};
    EXPECT_EQ(prompt.at(0), 0);
    EXPECT_EQ(prompt.at(1), VOCABULARY - 1);
    EXPECT_EQ(prompt.at(2), VOCABULARY - 1);
    EXPECT_EQ(prompt.at(3), 3);
}

TEST(the_audit_sees_what_is_wrong) {
    Pool pool(8);
    Row a(counting(2 * PAGE + 1));
    EXPECT(a.admit(pool));
    a.compute_rest(pool);
    EXPECT(audit(pool, {&a}) == nullptr);
    EXPECT(audit(pool, {}) != nullptr);       // pages owned by nobody
    EXPECT(audit(pool, {&a, &a}) != nullptr); // counted twice
    Row thief = a;
    thief.table.pages = thief.ids.data();
    EXPECT(audit(pool, {&a, &thief}) != nullptr);
    int32_t kept = a.table.pages[1];
    a.table.pages[1] = a.table.pages[0];
    EXPECT(audit(pool, {&a}) != nullptr); // names a page twice
    a.table.pages[1] = 7;
    EXPECT(audit(pool, {&a}) != nullptr); // names a free page
    a.table.pages[1] = 99;
    EXPECT(audit(pool, {&a}) != nullptr); // names no page
    a.table.pages[1] = kept;
    a.table.reserved++;
    EXPECT(audit(pool, {&a}) != nullptr);
    a.table.reserved--;
    pool.pages[static_cast<size_t>(a.table.pages[0])].refcount++;
    EXPECT(audit(pool, {&a}) != nullptr);
    pool.pages[static_cast<size_t>(a.table.pages[0])].refcount--;
    pool.pages[static_cast<size_t>(kept)].key.tenant_low++;
    EXPECT(audit(pool, {&a}) != nullptr);
    pool.pages[static_cast<size_t>(kept)].key.tenant_low--;
    EXPECT(audit(pool, {&a}) == nullptr);
}

} // namespace
} // namespace sublimate

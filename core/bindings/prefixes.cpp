// Python's view of what engines tell of their pages: PrefixHasher and PrefixTable. See _core.pyi
// for the contract.
//
// defines: hash_chain, attach_table, match_chain, table_load, bind_prefixes
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>

#include "../loop/page_hash.h"
#include "../ring/prefix_memory.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Chain = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewChain = nb::ndarray<nb::numpy, uint64_t, nb::ndim<1>>;

// As kv.h has it: whole pages, and never the last token, which is always computed.
NewChain hash_chain(const PageHasher& hasher, const Ids& ids, int32_t tenant_low,
                    int32_t tenant_high, int32_t adapter, int32_t sparse_mode) {
    if (ids.size() > static_cast<size_t>(limits::CONTEXT_TOKENS_MAX))
        throw nb::value_error("ids: more than CONTEXT_TOKENS_MAX");
    auto tokens = static_cast<int32_t>(ids.size());
    int32_t pages = tokens == 0 ? 0 : (tokens - 1) / limits::PAGE_TOKENS;
    auto hashes = std::make_unique<uint64_t[]>(static_cast<size_t>(pages) + 1);
    hasher.chain({tenant_low, tenant_high, adapter, sparse_mode}, ids.data(), pages, hashes.get());
    uint64_t* data = hashes.release();
    nb::capsule owner(data, [](void* held) noexcept { delete[] static_cast<uint64_t*>(held); });
    return NewChain(data, {static_cast<size_t>(pages)}, owner);
}

PrefixMemory attach_table(int fd) {
    PrefixMemory table;
    const char* why = PrefixMemory::attach(fd, table);
    if (why) throw CoreError(why);
    return table;
}

int32_t match_chain(const PrefixMemory& table, const Chain& chain) {
    if (chain.size() > static_cast<size_t>(limits::PAGES_PER_SEQUENCE_MAX))
        throw nb::value_error("chain: more than PAGES_PER_SEQUENCE_MAX");
    auto pages = static_cast<int32_t>(chain.size());
    return limits::PAGE_TOKENS * prefix_pages(table.view(), chain.data(), pages);
}

nb::dict table_load(const PrefixMemory& table) {
    const PrefixLoad& load = table.view().control->load;
    nb::dict result;
    result["running"] = load_acquire(&load.running);
    result["waiting"] = load_acquire(&load.waiting);
    result["prompt_tokens_left"] = load_acquire(&load.prompt_tokens_left);
    result["pages_total"] = load_acquire(&load.pages_total);
    result["pages_available"] = load_acquire(&load.pages_available);
    result["prompt_row_ps"] = load_acquire(&load.prompt_row_ps);
    return result;
}

} // namespace

void bind_prefixes(nb::module_& m) {
    nb::class_<PageHasher>(m, "PrefixHasher")
        .def(
            "__init__", [](PageHasher* self, uint64_t secret) { new (self) PageHasher{secret}; },
            "secret"_a)
        .def("chain", &hash_chain, "ids"_a.noconvert(), nb::kw_only(), "tenant_low"_a,
             "tenant_high"_a, "adapter"_a = 0, "sparse_mode"_a = 0);
    nb::class_<PrefixMemory>(m, "PrefixTable")
        .def_static("attach", &attach_table, "fd"_a)
        .def("match", &match_chain, "chain"_a.noconvert())
        .def("load", &table_load);
}

} // namespace sublimate

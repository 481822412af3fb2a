// Reading CPUID, /proc, /sys and the control group. Every source may be missing; then the figure is
// 0 or "unknown".
#include "probe.h"
#include "../check.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sublimate::cpu {

namespace {

constexpr int64_t HUGE_PAGE_BYTES_DEFAULT = int64_t{2} << 20;

std::string first_line(const char* path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// A whole positive number, or 0.
int64_t number_in(const std::string& text) {
    std::istringstream stream(text);
    int64_t number = 0;
    stream >> number;
    return stream && number > 0 ? number : 0;
}

std::string huge_page_mode() {
    std::string line = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
    size_t open = line.find('[');
    size_t close = line.find(']');
    if (open == std::string::npos || close == std::string::npos || close < open) return "unknown";
    return line.substr(open + 1, close - open - 1);
}

#if defined(__x86_64__)

struct Feature {
    const char* name;
    uint32_t leaf, subleaf;
    int32_t output; // 0 eax, 1 ebx, 2 ecx, 3 edx
    int32_t bit;
};

// Intel SDM volume 2A, CPUID.
constexpr Feature FEATURES[] = {
    {"fma", 1, 0, 2, 12},        {"f16c", 1, 0, 2, 29},        {"avx2", 7, 0, 1, 5},
    {"avx512f", 7, 0, 1, 16},    {"avx512bw", 7, 0, 1, 30},    {"avx512_vnni", 7, 0, 2, 11},
    {"avx512_bf16", 7, 1, 0, 5}, {"avx512_fp16", 7, 0, 3, 23}, {"avx_vnni", 7, 1, 0, 4},
    {"amx_tile", 7, 0, 3, 24},   {"amx_int8", 7, 0, 3, 25},    {"amx_bf16", 7, 0, 3, 22},
};

constexpr bool name_one_bit_each(const Feature* features, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const Feature& one = features[i];
        if (one.output < 0 || one.output > 3 || one.bit < 0 || one.bit > 31) return false;
        for (size_t j = 0; j < i; j++) {
            const Feature& other = features[j];
            if (one.leaf == other.leaf && one.subleaf == other.subleaf &&
                one.output == other.output && one.bit == other.bit)
                return false;
        }
    }
    return true;
}
static_assert(name_one_bit_each(FEATURES, std::size(FEATURES)));

constexpr uint32_t BRAND_FIRST_LEAF = 0x80000002u;
constexpr uint32_t BRAND_LAST_LEAF = 0x80000004u;
constexpr long ARCH_GET_XCOMP_PERM = 0x1022;
constexpr uint64_t XFEATURE_TILE_DATA = uint64_t{1} << 18;
static_assert((BRAND_LAST_LEAF - BRAND_FIRST_LEAF + 1) * 4 * sizeof(uint32_t) == 48,
              "the brand has 48 bytes, its end among them");

std::string brand() {
    char text[(BRAND_LAST_LEAF - BRAND_FIRST_LEAF + 1) * 4 * sizeof(uint32_t) + 1] = {};
    if (__get_cpuid_max(BRAND_FIRST_LEAF, nullptr) < BRAND_LAST_LEAF) return "";
    for (uint32_t leaf = BRAND_FIRST_LEAF; leaf <= BRAND_LAST_LEAF; leaf++) {
        uint32_t words[4] = {};
        __get_cpuid(leaf, &words[0], &words[1], &words[2], &words[3]);
        std::memcpy(text + (leaf - BRAND_FIRST_LEAF) * sizeof words, words, sizeof words);
    }
    std::string name = text;
    size_t begin = name.find_first_not_of(' ');
    return begin == std::string::npos ? "" : name.substr(begin);
}

void add_processor(CpuReport* report) {
    report->model = brand();
    for (const Feature& feature : FEATURES) {
        uint32_t words[4] = {};
        __get_cpuid_count(feature.leaf, feature.subleaf, &words[0], &words[1], &words[2],
                          &words[3]);
        if ((words[feature.output] >> feature.bit & 1u) != 0)
            report->features.emplace_back(feature.name);
    }
    uint64_t permitted = 0;
    report->amx_permitted = syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &permitted) == 0 &&
                            (permitted & XFEATURE_TILE_DATA) != 0;
}

#else

void add_processor(CpuReport*) {}

#endif

} // namespace

int32_t usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    int32_t cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = std::max(1, CPU_COUNT(&set));
    // "quota period" in microseconds, or "max period".
    std::istringstream quota_line(first_line("/sys/fs/cgroup/cpu.max"));
    double quota = 0.0;
    double period = 0.0;
    if (quota_line >> quota >> period && quota > 0.0 && period > 0.0)
        cores = std::min(cores, std::max(1, static_cast<int32_t>(std::ceil(quota / period))));
    CHECK(cores >= 1);
    return cores;
}

int64_t memory_bytes() {
    int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGE_SIZE)};
    for (const char* path :
         {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
        int64_t limit = number_in(first_line(path));
        if (limit > 0) memory = std::min(memory, limit);
    }
    CHECK_BECAUSE(memory > 0, "the kernel tells how many pages there are");
    return memory;
}

CpuReport probe_cpu() {
    CpuReport report;
    report.cores = usable_cores();
    for (Isa isa : {Isa::ref, Isa::portable, Isa::avx2, Isa::avx512, Isa::amx})
        if (isa_runs(isa)) report.runs.push_back(isa);
    report.best = best_isa();
    CHECK_BECAUSE(!report.runs.empty(), "plain C++ runs wherever this does");
    CHECK(isa_runs(report.best));
    add_processor(&report);
    report.l1_data_bytes = std::max(0L, sysconf(_SC_LEVEL1_DCACHE_SIZE));
    report.l2_bytes = std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE));
    report.l3_bytes = std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
    report.memory_bytes = memory_bytes();
    report.transparent_huge_pages = huge_page_mode();
    int64_t size = number_in(first_line("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"));
    report.huge_page_bytes = size > 0 ? size : HUGE_PAGE_BYTES_DEFAULT;
    CHECK(report.huge_page_bytes % sysconf(_SC_PAGE_SIZE) == 0);
    return report;
}

} // namespace sublimate::cpu

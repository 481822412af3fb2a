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
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sublimate::cpu {

namespace {

constexpr int64_t HUGE_PAGE_BYTES_DEFAULT = int64_t{2} << 20;

// A whole positive number, or 0.
int64_t number_in(const std::string& text) {
    std::istringstream stream(text);
    int64_t number = 0;
    stream >> number;
    return stream && number > 0 ? number : 0;
}

std::string huge_page_mode() {
    std::string line = read_file("/sys/kernel/mm/transparent_hugepage/enabled");
    size_t open = line.find('[');
    size_t close = line.find(']');
    if (open == std::string::npos || close == std::string::npos || close < open) return "unknown";
    return line.substr(open + 1, close - open - 1);
}

// Version 1 expresses "no limit" as a number that no machine has.
constexpr int64_t MEMORY_LIMIT_MAX = int64_t{1} << 60;

// mountinfo writes a space, for example, as \040.
std::string without_escapes(const std::string& field) {
    std::string plain;
    for (size_t i = 0; i < field.size(); i++) {
        if (field[i] == '\\' && i + 3 < field.size()) {
            plain += static_cast<char>(std::stoi(field.substr(i + 1, 3), nullptr, 8));
            i += 3;
        } else {
            plain += field[i];
        }
    }
    return plain;
}

// Whether one of the names in a comma-separated list is this one.
bool lists(const std::string& names, const std::string& name) {
    return ("," + names + ",").find("," + name + ",") != std::string::npos;
}

struct Mount {
    std::string root;  // the group that the mount point shows
    std::string point; // its folder
};

// The mounts of the hierarchy with this controller. A line has its root as the fourth field, the
// mount point as the fifth, and behind a lone "-" type, source and options.
std::vector<Mount> group_mounts(const ReadFile& read, const std::string& controller) {
    std::vector<Mount> mounts;
    std::istringstream lines(read("/proc/self/mountinfo"));
    for (std::string line; std::getline(lines, line);) {
        std::istringstream fields(line);
        std::string skipped, root, point, type, source, options;
        fields >> skipped >> skipped >> skipped >> root >> point;
        while (fields >> skipped && skipped != "-") {
        }
        fields >> type >> source >> options;
        if (controller.empty() ? type == "cgroup2" : type == "cgroup" && lists(options, controller))
            mounts.push_back({without_escapes(root), without_escapes(point)});
    }
    return mounts;
}

// The path of this process's group within the hierarchy; empty: it has none.
std::string group_path(const ReadFile& read, const std::string& controller) {
    std::istringstream lines(read("/proc/self/cgroup"));
    for (std::string line; std::getline(lines, line);) { // "4:memory:/path", "0::/path"
        size_t first = line.find(':');
        size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        std::string controllers = line.substr(first + 1, second - first - 1);
        if (controller.empty() ? controllers.empty() : lists(controllers, controller))
            return line.substr(second + 1);
    }
    return "";
}

// The folders of both versions: a machine may have some controllers in the one, some in the other.
std::vector<std::string> folders_of_both(const ReadFile& read, const std::string& controller) {
    std::vector<std::string> folders = group_folders(read, controller);
    for (std::string& folder : group_folders(read, "")) folders.push_back(std::move(folder));
    return folders;
}

void limit_memory(const ReadFile& read, const std::string& folder, GroupLimits* limits) {
    constexpr std::pair<const char*, const char*> FILES[] = {
        {"/memory.max", "/memory.current"},
        {"/memory.high", "/memory.current"}, // above it the kernel slows the group down
        {"/memory.limit_in_bytes", "/memory.usage_in_bytes"},
    };
    for (const auto& [limit_file, used_file] : FILES) {
        int64_t limit = number_in(read(folder + limit_file));
        if (limit == 0 || limit >= MEMORY_LIMIT_MAX) continue;
        int64_t left = std::max<int64_t>(0, limit - number_in(read(folder + used_file)));
        bool first = limits->memory_bytes == 0;
        limits->memory_bytes = first ? limit : std::min(limits->memory_bytes, limit);
        limits->memory_free_bytes = first ? left : std::min(limits->memory_free_bytes, left);
    }
}

void limit_cores(const ReadFile& read, const std::string& folder, GroupLimits* limits) {
    // Version 2: "quota period" in microseconds, or "max period".
    std::string line = read(folder + "/cpu.max");
    if (line.empty())
        line = read(folder + "/cpu.cfs_quota_us") + " " + read(folder + "/cpu.cfs_period_us");
    std::istringstream stream(line);
    double quota = 0.0;
    double period = 0.0;
    if (!(stream >> quota >> period) || quota <= 0.0 || period <= 0.0) return;
    limits->cores = limits->cores == 0 ? quota / period : std::min(limits->cores, quota / period);
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

std::string read_file(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> group_folders(const ReadFile& read, const std::string& controller) {
    std::string path = group_path(read, controller);
    for (const Mount& mount : group_mounts(read, controller)) {
        std::string root = mount.root == "/" ? "" : mount.root;
        if (path.compare(0, root.size(), root) != 0) continue;
        std::string below = path.substr(root.size()); // "/a/b"; of the root itself "/" or ""
        if (!below.empty() && below.front() != '/') continue;
        std::vector<std::string> folders;
        for (; below.size() > 1; below.resize(below.rfind('/')))
            folders.push_back(mount.point + below);
        folders.push_back(mount.point);
        return folders;
    }
    return {};
}

GroupLimits group_limits(const ReadFile& read) {
    GroupLimits limits;
    for (const std::string& folder : folders_of_both(read, "memory"))
        limit_memory(read, folder, &limits);
    for (const std::string& folder : folders_of_both(read, "cpu"))
        limit_cores(read, folder, &limits);
    return limits;
}

int32_t usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    int32_t cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = std::max(1, CPU_COUNT(&set));
    double allowed = std::ceil(group_limits(read_file).cores);
    if (allowed > 0 && allowed < cores) cores = static_cast<int32_t>(allowed);
    CHECK(cores >= 1);
    return cores;
}

int64_t memory_bytes() {
    int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGE_SIZE)};
    int64_t allowed = group_limits(read_file).memory_bytes;
    if (allowed > 0) memory = std::min(memory, allowed);
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
    int64_t size = number_in(read_file("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"));
    report.huge_page_bytes = size > 0 ? size : HUGE_PAGE_BYTES_DEFAULT;
    CHECK(report.huge_page_bytes % sysconf(_SC_PAGE_SIZE) == 0);
    return report;
}

} // namespace sublimate::cpu

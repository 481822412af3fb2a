// The simulator's command line.
//
//   sublimate_sim --seeds 200000 --first 0 --steps 200      plays seeds; a failing one prints how
//   to replay it sublimate_sim --seeds 1 --first 4711 --verbose          replays one
//   sublimate_sim_faults --planted --seeds 2000             each planted fault must be seen within
//   so many seeds sublimate_sim_faults --fault hash_only_hit              plays seeds with one
//   planted fault sublimate_sim --list-faults
//
// Exit code 0: all held (with --planted: all were seen). 1: not. 2: wrong usage.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "world.h"

namespace sublimate::sim {
namespace {

struct Options {
    uint64_t seeds = 2000;
    uint64_t first = 0;
    int32_t steps = 200;
    std::string fault = "none";
    bool verbose = false;
    bool planted = false;
};

constexpr uint64_t COVERAGE_SEEDS_MIN = 1000; // from so many seeds on everything must have happened
constexpr unsigned FAULT_SECONDS_MAX = 300;

void print_usage() {
    std::printf("usage: sublimate_sim [--seeds N] [--first S] [--steps K] [--fault NAME]\n"
                "                     [--planted] [--verbose] [--list-faults]\n");
}

bool parse(int count, char** arguments, Options& options) {
    for (int i = 1; i < count; i++) {
        std::string name = arguments[i];
        if (name == "--verbose") {
            options.verbose = true;
        } else if (name == "--planted") {
            options.planted = true;
        } else if (i + 1 >= count) {
            return false;
        } else if (name == "--seeds") {
            options.seeds = std::strtoull(arguments[++i], nullptr, 10);
        } else if (name == "--first") {
            options.first = std::strtoull(arguments[++i], nullptr, 10);
        } else if (name == "--steps") {
            options.steps = std::atoi(arguments[++i]);
        } else if (name == "--fault") {
            options.fault = arguments[++i];
        } else {
            return false;
        }
    }
    return options.seeds > 0 && options.steps > 0;
}

int32_t fault_from_name(const std::string& name) {
    for (int32_t i = 0; i < static_cast<int32_t>(Fault::count); i++)
        if (name == FAULT_NAMES[i]) return i;
    return -1;
}

bool plant(int32_t fault) {
#if defined(SUBLIMATE_FAULTS)
    planted_fault = static_cast<Fault>(fault);
    return true;
#else
    return fault == 0;
#endif
}

void print_coverage(const Coverage& c, double seconds, uint64_t seeds) {
    auto n = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    std::printf("%llu seeds in %.1f s (%.0f seeds/s), %llu steps, %llu rows, %llu tokens\n",
                n(seeds), seconds, static_cast<double>(seeds) / seconds, n(c.steps), n(c.rows),
                n(c.tokens));
    std::printf("cached %llu, evictions %llu, cancelled queue %llu prefill %llu decode %llu, stale "
                "%llu, refused %llu (hostile %llu), failed %llu\n",
                n(c.cached), n(c.evictions), n(c.cancelled_queue), n(c.cancelled_prefill),
                n(c.cancelled_decode), n(c.stale), n(c.refused), n(c.hostile), n(c.failed));
    std::printf("free from masks %llu, triggers %llu, traced parts of steps %llu\n", n(c.freed),
                n(c.triggered), n(c.traced));
    std::printf("mask waits %llu, ring full %llu, lost edges %llu, edge deaths %llu, engine deaths "
                "%llu, drained %llu, drafts %llu (right %llu)\n",
                n(c.mask_waits), n(c.ring_full), n(c.lost_edges), n(c.edge_deaths),
                n(c.engine_deaths), n(c.drained), n(c.drafted), n(c.accepted_drafts));
}

bool covers_everything(const Coverage& c) {
    return c.tokens > 0 && c.cached > 0 && c.evictions > 0 && c.cancelled_queue > 0 &&
           c.cancelled_prefill > 0 && c.cancelled_decode > 0 && c.stale > 0 && c.refused > 0 &&
           c.failed > 0 && c.mask_waits > 0 && c.ring_full > 0 && c.lost_edges > 0 &&
           c.edge_deaths > 0 && c.engine_deaths > 0 && c.hostile > 0 && c.accepted_drafts > 0 &&
           c.drafted > c.accepted_drafts && c.freed > 0 && c.triggered > 0 && c.traced > 0;
}

// current: told the seed before it is played, so that a crash can be replayed too.
int play(const Options& options, volatile uint64_t* current) {
    World world;
    auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < options.seeds; i++) {
        uint64_t seed = options.first + i;
        *current = seed;
        std::string why = world.run(seed, options.steps, options.verbose);
        if (why.empty()) continue;
        auto number = static_cast<unsigned long long>(seed);
        std::printf("seed %llu failed: %s\n", number, why.c_str());
        std::printf("replay: sublimate_sim --seeds 1 --first %llu --steps %d%s%s --verbose\n",
                    number, options.steps, options.fault == "none" ? "" : " --fault ",
                    options.fault == "none" ? "" : options.fault.c_str());
        return 1;
    }
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    print_coverage(world.coverage(), seconds, options.seeds);
    if (options.seeds >= COVERAGE_SEEDS_MIN && !covers_everything(world.coverage())) {
        std::printf("failed: something that the simulator should do never happened\n");
        return 1;
    }
    return 0;
}

// Plays in a child process: a planted fault may also end in a CHECK or a hang.
struct Outcome {
    bool seen;
    uint64_t seed;
    const char* how;
};

Outcome play_in_child(const Options& options, int32_t fault, uint64_t* shared) {
    std::fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        bool silenced = std::freopen("/dev/null", "w", stdout) &&
                        (options.verbose || std::freopen("/dev/null", "w", stderr));
        alarm(FAULT_SECONDS_MAX);
        _exit(silenced && plant(fault) ? play(options, shared) : 3);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    bool crashed = WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM;
    bool wrong = WIFEXITED(status) && WEXITSTATUS(status) == 1;
    return {crashed || wrong, *shared,
            crashed ? "CHECK" : (wrong ? "oracle or audit" : "not seen")};
}

int play_planted(const Options& options) {
    void* page =
        mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    auto* shared = static_cast<uint64_t*>(page);
    int32_t missed = 0;
    for (int32_t fault = 1; fault < static_cast<int32_t>(Fault::count); fault++) {
        *shared = options.first;
        Outcome outcome = play_in_child(options, fault, shared);
        missed += outcome.seen ? 0 : 1;
        std::printf("%-28s %s (%s, seed %llu)\n", FAULT_NAMES[fault],
                    outcome.seen ? "seen" : "MISSED", outcome.how,
                    static_cast<unsigned long long>(outcome.seed));
    }
    std::printf("%d planted faults, %d missed\n", static_cast<int32_t>(Fault::count) - 1, missed);
    return missed == 0 ? 0 : 1;
}

int run_main(int count, char** arguments) {
    Options options;
    if (count == 2 && std::strcmp(arguments[1], "--list-faults") == 0) {
        for (const char* name : FAULT_NAMES) std::printf("%s\n", name);
        return 0;
    }
    int32_t fault = -1;
    if (!parse(count, arguments, options) || (fault = fault_from_name(options.fault)) < 0) {
        print_usage();
        return 2;
    }
    if ((options.planted || fault != 0) && !plant(fault == 0 ? 1 : fault)) {
        std::printf("this build has no planted faults: use sublimate_sim_faults\n");
        return 2;
    }
    if (options.planted) return play_planted(options);
    plant(fault);
    uint64_t current = 0;
    return play(options, &current);
}

} // namespace
} // namespace sublimate::sim

int main(int count, char** arguments) {
    return sublimate::sim::run_main(count, arguments);
}

// Commands from other threads, and the life of the loop's own thread.
#include "engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "../cpu/allocations.h"
#include "../retry.h"
#include "injected_faults.h"

namespace sublimate {

namespace {

// With requests in flight that nothing but a late mask or a slow reader can move, look again this
// often.
constexpr int BLOCKED_POLL_MS = 2;
// After the last request: once more, so that the published figures say "idle".
constexpr int SETTLING_POLL_MS = 1000;
constexpr int FOREVER_MS = -1;

void ring(int fd) {
    uint64_t one = 1;
    // EAGAIN means that the counter is already far from zero: the sleeper wakes all the same.
    ssize_t written = retried([&] { return write(fd, &one, sizeof(one)); });
    CHECK_BECAUSE(written > 0 || errno == EAGAIN, "a bell that cannot be rung wakes nobody");
}

void drain(int fd) {
    uint64_t count = 0;
    static_cast<void>(retried([&] { return read(fd, &count, sizeof(count)); }));
}

// From the loop's side of the token ring.
bool tokens_pending_for_edge(const RegionView& view) {
    return view.control->token_tail != load_acquire(&view.control->token_head);
}

} // namespace

int64_t monotonic_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

Engine::Engine() {
    control_bell_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    CHECK_BECAUSE(control_bell_ >= 0, "eventfd: the process is out of descriptors");
    commands_.reserve(limits::EDGES_MAX);
}

Engine::~Engine() {
    close(control_bell_);
}

void Engine::set_loop(std::unique_ptr<EngineLoop> loop, PrefixMemory prefixes) {
    CHECK(loop_ == nullptr && loop != nullptr);
    loop_ = std::move(loop);
    prefixes_ = std::move(prefixes);
}

void Engine::inject_faults(const std::string& folder) {
    std::lock_guard<std::mutex> lock(mutex_);
    CHECK_BECAUSE(!running_, "faults for a loop that runs");
    for (const auto& region : regions_) CHECK_BECAUSE(!region, "faults after a region");
    loop_ = std::make_unique<FaultyLoop>(std::move(loop_), folder);
}

// ---- commands from other threads
// --------------------------------------------------------------------------
int32_t Engine::attach(std::shared_ptr<Region> region) {
    int32_t edge = 0;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        while (edge < limits::EDGES_MAX && taken_[edge]) edge++;
        if (edge == limits::EDGES_MAX) return -1;
        taken_[edge] = true;
    }
    submit_command({Command::Kind::attach, edge, std::move(region)});
    return edge;
}

void Engine::detach(int32_t edge) {
    CHECK(edge >= 0 && edge < limits::EDGES_MAX);
    submit_command({Command::Kind::detach, edge, nullptr});
    std::lock_guard<std::mutex> lock(mutex_);
    taken_[edge] = false;
}

std::string Engine::audit() {
    submit_command({Command::Kind::audit, 0, nullptr});
    std::lock_guard<std::mutex> lock(mutex_);
    return audit_;
}

StatsPage Engine::stats() {
    submit_command({Command::Kind::stats, 0, nullptr});
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
}

void Engine::submit_command(Command command) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!running_) {
        apply(command);
        return;
    }
    commands_.push_back(std::move(command));
    uint64_t mine = ++submitted_;
    commands_pending_.store(true, std::memory_order_release);
    ring(control_bell_);
    applied_.wait(lock, [&] { return done_ >= mine || !running_; });
    if (done_ < mine) apply_locked(); // the loop stopped before it saw the command
}

// mutex_ held.
void Engine::apply(const Command& command) {
    switch (command.kind) {
    case Command::Kind::attach:
        regions_[command.edge] = command.region;
        loop_->attach(command.edge, command.region->view());
        break;
    case Command::Kind::detach:
        if (!regions_[command.edge]) break;
        loop_->detach(command.edge);
        regions_[command.edge].reset();
        break;
    case Command::Kind::stats:
        stats_ = loop_->stats();
        break;
    case Command::Kind::audit:
        audit_ = loop_->audit();
        break;
    }
}

// mutex_ held.
void Engine::apply_locked() {
    for (const Command& command : commands_) apply(command);
    done_ += commands_.size();
    commands_.clear();
    commands_pending_.store(false, std::memory_order_release);
    applied_.notify_all();
}

// ---- the loop's thread
// ----------------------------------------------------------------------------------------
void Engine::run() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        CHECK_BECAUSE(!running_, "two threads run one engine");
        running_ = true;
    }
    loop_->place_threads();
    while (!stopping_.load(std::memory_order_acquire)) {
        if (commands_pending_.load(std::memory_order_acquire)) {
            cpu::watch_allocations(false); // an edge that comes or goes may cost some
            std::lock_guard<std::mutex> lock(mutex_);
            apply_locked();
        }
        cpu::watch_allocations(true);
        beat();
        uint64_t submitted_before = submissions();
        if (!loop_->run_once()) sleep_until_work(submitted_before);
    }
    cpu::watch_allocations(false);
    std::lock_guard<std::mutex> lock(mutex_);
    running_ = false;
    stopping_.store(false, std::memory_order_release);
    apply_locked();
}

void Engine::stop() {
    stopping_.store(true, std::memory_order_release);
    ring(control_bell_);
}

void Engine::warm_up() {
    // On cores of their own, as the threads will run; the caller keeps all of its cores.
    bool enough_memory = true;
    std::thread([&] {
        try {
            loop_->place_threads();
            loop_->warm_up();
        } catch (const std::bad_alloc&) {
            enough_memory = false;
        }
    }).join();
    if (!enough_memory) throw std::bad_alloc();
    loop_->populate_ahead();
}

void Engine::beat() {
    auto now = static_cast<uint64_t>(monotonic_ns());
    for (auto& region : regions_)
        if (region) store_release(&region->view().control->engine_heartbeat_ns, now);
}

bool Engine::submissions_pending() const {
    for (const auto& region : regions_)
        if (region && submission_pending(region->view()) &&
            load_acquire(&region->view().control->edge_lost) == 0)
            return true;
    return false;
}

uint64_t Engine::submissions() const {
    uint64_t sum = 0;
    for (const auto& region : regions_)
        if (region) sum += load_sequential(&region->view().control->submission_tail);
    return sum;
}

bool Engine::work_arrived(uint64_t submitted_before) const {
    return submissions() != submitted_before || loop_->mask_arrived() ||
           commands_pending_.load(std::memory_order_acquire) ||
           stopping_.load(std::memory_order_acquire);
}

// A short spin only where a core is spare: on a machine whose cores all compute, spinning would
// take the time of the edge that is about to ring.
//
// submitted_before: submissions() before the iteration that found nothing to do. What was there
// then is blocked (its edge does not read), and only a look now and then is worth it; what came
// since is work.
void Engine::sleep_until_work(uint64_t submitted_before) {
    static const bool spare_core = std::thread::hardware_concurrency() > 2;
    for (int32_t i = 0; spare_core && i < limits::SPIN_ROUNDS; i++) {
        if (work_arrived(submitted_before)) return;
        __builtin_ia32_pause();
    }
    pollfd waits[limits::EDGES_MAX + 1];
    nfds_t count = 0;
    waits[count++] = {control_bell_, POLLIN, 0};
    for (auto& region : regions_) {
        if (!region) continue;
        sleep_announce(&region->view().control->engine_sleeping);
        waits[count++] = {region->bell_fd(Bell::submission), POLLIN, 0};
    }
    bool work = work_arrived(submitted_before);
    bool blocked = loop_->has_requests() || submissions_pending();
    int timeout_ms = blocked ? BLOCKED_POLL_MS : loop_->at_rest() ? FOREVER_MS : SETTLING_POLL_MS;
    if (!work) poll(waits, count, timeout_ms);
    for (auto& region : regions_) {
        if (!region) continue;
        sleep_end(&region->view().control->engine_sleeping);
        region->clear_bell(Bell::submission);
    }
    drain(control_bell_);
}

void Engine::published() {
    for (const auto& region : regions_) {
        if (!region || !tokens_pending_for_edge(region->view())) continue;
        if (sleep_announced(&region->view().control->edge_sleeping)) region->ring_bell(Bell::token);
    }
}

} // namespace sublimate

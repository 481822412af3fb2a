// Fails the n-th allocation or system call of the process that loads it (LD_PRELOAD); for the
// torture driver beside it. Allocations are counted where libc's functions are called. System calls
// trap into a signal handler (seccomp), which makes them itself or answers with an error: every
// thread's, exactly the n-th, at some microseconds each.
//
// defines: torture_begin, malloc and its kin
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace {

enum Kind : int64_t { none, allocation, call, interruption, short_read };

// Shared with the driver, which reads it after this process has ended. Zeroed by it.
struct Shared {
    std::atomic<int64_t> seen;  // of the kind so far
    std::atomic<int64_t> fired; // 1: the n-th was there
    std::atomic<int64_t> which; // number of the call, bytes of the allocation
};

std::atomic<int64_t> kind_now{none};
int64_t fail_at = 0; // 0: only count
Shared* shared = nullptr;

// Whether this one is the n-th.
bool is_due(int64_t kind, int64_t which) {
    if (kind_now.load(std::memory_order_relaxed) != kind) return false;
    if (shared->seen.fetch_add(1, std::memory_order_relaxed) + 1 != fail_at) return false;
    shared->which.store(which, std::memory_order_relaxed);
    shared->fired.store(1, std::memory_order_release);
    return true;
}

bool fails(size_t bytes) {
    if (!is_due(allocation, static_cast<int64_t>(bytes))) return false;
    errno = ENOMEM;
    return true;
}

// ---- system calls
// -------------------------------------------------------------------------------- The filter lets
// calls from between these labels pass. A clone gives its child another stack, so it is not made
// inside of the handler: the thread goes on here, and from here to where it was.
asm(R"(
    .text
torture_pass_begin:
torture_call:
    mov %rdi, %rax
    mov %rsi, %rdi
    mov %rdx, %rsi
    mov %rcx, %rdx
    mov %r8, %r10
    mov %r9, %r8
    mov 8(%rsp), %r9
    syscall
    ret
torture_clone:
    syscall
    jmp *torture_clone_return(%rip)
torture_pass_end:
    nop
)");

extern "C" {
extern const char torture_pass_begin[], torture_pass_end[], torture_clone[];
long torture_call(long number, long a, long b, long c, long d, long e, long f);
__attribute__((used, visibility("hidden"))) uint64_t torture_clone_return = 0;
}

// Cannot fail, or only by a bug of the caller; or the handler itself depends on them.
constexpr int NEVER[] = {
    SYS_rt_sigreturn,
    SYS_rt_sigaction,
    SYS_sigaltstack,
    SYS_exit,
    SYS_exit_group,
    SYS_futex,
    SYS_sched_yield,
    SYS_getpid,
    SYS_gettid,
    SYS_getppid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_clock_gettime,
    SYS_gettimeofday,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_set_tid_address,
    SYS_arch_prctl,
    SYS_restart_syscall,
    SYS_prctl,
    SYS_seccomp,
    SYS_tgkill,
    SYS_time,
};

constexpr int INTERRUPTIBLE[] = {
    SYS_read,    SYS_write,    SYS_readv,      SYS_writev,      SYS_pread64,         SYS_pwrite64,
    SYS_poll,    SYS_ppoll,    SYS_epoll_wait, SYS_epoll_pwait, SYS_select,          SYS_pselect6,
    SYS_recvmsg, SYS_recvfrom, SYS_sendmsg,    SYS_sendto,      SYS_clock_nanosleep, SYS_openat,
};

template <size_t N>
bool is_one_of(const int (&list)[N], long number) {
    for (int one : list)
        if (one == number) return true;
    return false;
}

// As the kernel would say it where the machine has no more.
int error_of(long number) {
    switch (number) {
    case SYS_openat:
    case SYS_open:
    case SYS_memfd_create:
    case SYS_eventfd2:
    case SYS_epoll_create1:
    case SYS_socket:
    case SYS_dup:
    case SYS_fcntl:
        return EMFILE;
    case SYS_clone:
    case SYS_clone3:
        return EAGAIN;
    case SYS_read:
    case SYS_write:
    case SYS_readv:
    case SYS_writev:
    case SYS_pread64:
    case SYS_pwrite64:
    case SYS_lseek:
    case SYS_fstat:
    case SYS_newfstatat:
    case SYS_statx:
    case SYS_getdents64:
    case SYS_close:
    case SYS_ioctl:
        return EIO;
    default:
        return ENOMEM;
    }
}

// The kernel would apply the mask at once, and take it back when this handler returns: so it is
// changed in what the handler returns to. SIGSYS is never blocked, for a blocked trap would kill.
long change_mask(ucontext_t* at, long how, long set_address, long old_address) {
    constexpr uint64_t TRAP = uint64_t{1} << (SIGSYS - 1);
    uint64_t mask;
    std::memcpy(&mask, &at->uc_sigmask, sizeof mask);
    uint64_t before = mask;
    if (set_address != 0) {
        uint64_t given;
        std::memcpy(&given, reinterpret_cast<const void*>(set_address), sizeof given);
        mask = how == SIG_BLOCK ? mask | given : how == SIG_UNBLOCK ? mask & ~given : given;
        mask &= ~TRAP;
        std::memcpy(&at->uc_sigmask, &mask, sizeof mask);
    }
    if (old_address != 0) std::memcpy(reinterpret_cast<void*>(old_address), &before, sizeof before);
    return 0;
}

void on_call(int, siginfo_t* info, void* context) {
    auto* at = static_cast<ucontext_t*>(context);
    greg_t* r = at->uc_mcontext.gregs;
    long number = info->si_syscall;
    if (number == SYS_rt_sigprocmask) {
        r[REG_RAX] = change_mask(at, r[REG_RDI], r[REG_RSI], r[REG_RDX]);
        return;
    }
    bool halves = (number == SYS_read || number == SYS_pread64) && r[REG_RDX] > 1 &&
                  is_due(short_read, number);
    bool error = is_due(call, number);
    if (is_one_of(INTERRUPTIBLE, number) && is_due(interruption, number)) {
        r[REG_RAX] = -EINTR;
        return;
    }
    if (error && number != SYS_close && number != SYS_brk) {
        r[REG_RAX] = -error_of(number);
        return;
    }
    if (number == SYS_clone || number == SYS_clone3) {
        torture_clone_return = static_cast<uint64_t>(r[REG_RIP]);
        r[REG_RIP] = static_cast<greg_t>(reinterpret_cast<uintptr_t>(torture_clone));
        return;
    }
    long count = halves ? r[REG_RDX] / 2 : r[REG_RDX];
    long first = error && number == SYS_brk ? 0 : r[REG_RDI]; // a break that does not move
    long made = torture_call(number, first, r[REG_RSI], count, r[REG_R10], r[REG_R8], r[REG_R9]);
    r[REG_RAX] = error && number == SYS_close ? -EIO : made; // closed all the same, as Linux does
}

void give_up(const char* what) {
    std::perror(what);
    std::abort();
}

void trap_calls() {
    constexpr size_t CHECKS = std::size(NEVER);
    auto begin = reinterpret_cast<uintptr_t>(torture_pass_begin);
    auto end = reinterpret_cast<uintptr_t>(torture_pass_end);
    if (begin >> 32 != end >> 32) give_up("the stub lies across a border");
    sock_filter filter[CHECKS + 11];
    unsigned short n = 0;
    auto add = [&](unsigned code, uint64_t value, size_t yes, size_t no) {
        filter[n++] = BPF_JUMP(static_cast<__u16>(code), static_cast<__u32>(value),
                               static_cast<__u8>(yes), static_cast<__u8>(no));
    };
    constexpr unsigned LOAD = BPF_LD | BPF_W | BPF_ABS, EQUAL = BPF_JMP | BPF_JEQ | BPF_K;
    constexpr size_t ADDRESS = offsetof(seccomp_data, instruction_pointer);
    add(LOAD, ADDRESS + 4, 0, 0);
    add(EQUAL, begin >> 32, 0, 4);
    add(LOAD, ADDRESS, 0, 0);
    add(BPF_JMP | BPF_JGE | BPF_K, begin & 0xFFFFFFFF, 0, 2);
    add(BPF_JMP | BPF_JGT | BPF_K, end & 0xFFFFFFFF, 1, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    add(LOAD, offsetof(seccomp_data, nr), 0, 0);
    for (size_t i = 0; i < CHECKS; i++) add(EQUAL, static_cast<uint64_t>(NEVER[i]), CHECKS - i, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_TRAP, 0, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    sock_fprog program = {n, filter};
    struct sigaction action = {};
    action.sa_sigaction = on_call;
    action.sa_flags = SA_SIGINFO;
    if (sigaction(SIGSYS, &action, nullptr) != 0) give_up("sigaction");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) give_up("PR_SET_NO_NEW_PRIVS");
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) give_up("seccomp");
}

} // namespace

// kind: of enum Kind; nth: 0 only counts. memory: a Shared that outlives the process.
extern "C" void torture_begin(int64_t kind, int64_t nth, void* memory) {
    shared = static_cast<Shared*>(memory);
    fail_at = nth;
    if (kind != allocation) trap_calls();
    kind_now.store(kind);
}

// ---- allocations
// ---------------------------------------------------------------------------------
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
    return fails(bytes) ? nullptr : __libc_malloc(bytes);
}

void* calloc(size_t count, size_t bytes) {
    return fails(count * bytes) ? nullptr : __libc_calloc(count, bytes);
}

void* realloc(void* old, size_t bytes) {
    return fails(bytes) ? nullptr : __libc_realloc(old, bytes);
}

void* memalign(size_t alignment, size_t bytes) {
    return fails(bytes) ? nullptr : __libc_memalign(alignment, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) {
    return memalign(alignment, bytes);
}

int posix_memalign(void** result, size_t alignment, size_t bytes) {
    void* made = memalign(alignment, bytes);
    if (made == nullptr) return ENOMEM;
    *result = made;
    return 0;
}
}

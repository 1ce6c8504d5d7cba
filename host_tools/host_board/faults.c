/* SPDX-License-Identifier: Apache-2.0
 *
 * faults.c: signals as the host's traps, a timer as its watchdog, and faults on purpose. */
#define _GNU_SOURCE
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include "host_board.h"

#define CHECK_MS 50
#define STACK_BYTES 65536

static uint8_t signal_stack[STACK_BYTES] __attribute__((aligned(16)));
/* Where the program was loaded, less where its ELF says: addresses are reported as the ELF has them. */
static uint64_t load_bias;
static timer_t watchdog_timer;
static bool timer_made;
static atomic_ullong deadline; /* nanoseconds; 0: stopped */
static atomic_ullong allowed;

static uint64_t nanoseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void describe(const ucontext_t *context, struct hal_fault *fault)
{
#if defined(__x86_64__)
    static const int order[] = {REG_RAX, REG_RBX, REG_RCX, REG_RDX, REG_RSI, REG_RDI, REG_RBP, REG_R8,
                                REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    const greg_t *registers = context->uc_mcontext.gregs;
    fault->pc = (uint64_t)registers[REG_RIP] - load_bias;
    fault->sp = (uint64_t)registers[REG_RSP];
    fault->status = (uint64_t)registers[REG_EFL];
    fault->register_count = sizeof order / sizeof *order;
    for (uint32_t i = 0; i < fault->register_count; i++) {
        fault->registers[i] = (uint64_t)registers[order[i]];
    }
#elif defined(__aarch64__)
    fault->pc = context->uc_mcontext.pc - load_bias;
    fault->sp = context->uc_mcontext.sp;
    fault->status = context->uc_mcontext.pstate;
    fault->register_count = 31;
    for (uint32_t i = 0; i < fault->register_count; i++) {
        fault->registers[i] = context->uc_mcontext.regs[i];
    }
#elif defined(__riscv)
    fault->pc = (uint64_t)context->uc_mcontext.__gregs[0] - load_bias;
    fault->sp = (uint64_t)context->uc_mcontext.__gregs[2];
    fault->register_count = 31;
    for (uint32_t i = 0; i < fault->register_count; i++) {
        fault->registers[i] = (uint64_t)context->uc_mcontext.__gregs[i + 1];
    }
#else
    (void)context;
    fault->register_count = 0;
#endif
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    struct hal_fault fault = {.kind = HAL_FAULT_TRAP, .cause = (uint64_t)number};
    if (number == SIGALRM) {
        uint64_t until = atomic_load(&deadline);
        if (until == 0 || nanoseconds() < until) {
            return;
        }
        fault.kind = HAL_FAULT_WATCHDOG;
    } else {
        fault.address = (uint64_t)(uintptr_t)info->si_addr;
    }
    describe(context, &fault);
    hal_on_fault(&fault);
}

static int note_bias(struct dl_phdr_info *info, size_t bytes, void *user)
{
    (void)bytes;
    (void)user;
    load_bias = info->dlpi_addr;
    return 1; /* the first is the program itself */
}

void host_faults_install(void)
{
    dl_iterate_phdr(note_bias, NULL);
    stack_t stack = {.ss_sp = signal_stack, .ss_size = sizeof signal_stack};
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    static const int traps[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGALRM};
    sigset_t unblock;
    sigemptyset(&unblock);
    sigemptyset(&action.sa_mask);
    bool installed = sigaltstack(&stack, NULL) == 0;
    for (size_t i = 0; i < sizeof traps / sizeof *traps; i++) {
        sigaddset(&unblock, traps[i]);
        installed = sigaction(traps[i], &action, NULL) == 0 && installed;
    }
    /* A reset from inside a handler leaves its signal blocked in the new program. */
    installed = sigprocmask(SIG_UNBLOCK, &unblock, NULL) == 0 && installed;
    installed = signal(SIGPIPE, SIG_IGN) != SIG_ERR && installed;
    if (!installed) {
        host_die("cannot install signal handlers");
    }
}

/* ---- watchdog */
static hal_status watchdog_start(const void *config, void *state, uint32_t milliseconds)
{
    (void)config;
    (void)state;
    if (!timer_made) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
        struct itimerspec period = {.it_interval = {.tv_nsec = CHECK_MS * 1000000L},
                                    .it_value = {.tv_nsec = CHECK_MS * 1000000L}};
        if (timer_create(CLOCK_MONOTONIC, &event, &watchdog_timer) != 0 ||
            timer_settime(watchdog_timer, 0, &period, NULL) != 0) {
            return HAL_E_IO;
        }
        timer_made = true;
    }
    atomic_store(&allowed, milliseconds * 1000000ull);
    atomic_store(&deadline, nanoseconds() + milliseconds * 1000000ull);
    return HAL_OK;
}

static void watchdog_kick(const void *config, void *state)
{
    (void)config;
    (void)state;
    atomic_store(&deadline, nanoseconds() + atomic_load(&allowed));
}

static void watchdog_stop(const void *config, void *state)
{
    (void)config;
    (void)state;
    atomic_store(&deadline, 0);
}

const struct hal_watchdog_api host_watchdog_api = {
    .start = watchdog_start, .kick = watchdog_kick, .stop = watchdog_stop};

/* ---- faults on purpose */
static enum host_read_fault read_fault;
static atomic_uint read_rounds;   /* signals so far */
static atomic_uint reads_to_fault; /* 1: the next one fails; 0: none does */

static void on_arm(int number)
{
    (void)number;
    atomic_store(&reads_to_fault, atomic_fetch_add(&read_rounds, 1) + 1u);
}

void host_faults_of_reads(enum host_read_fault kind)
{
    const struct sigaction action = {.sa_handler = on_arm, .sa_flags = SA_RESTART | SA_ONSTACK};
    read_fault = kind;
    if (kind != HOST_READ_WELL && sigaction(SIGUSR1, &action, NULL) != 0) {
        host_die("cannot install signal handlers");
    }
}

enum host_read_fault host_fault_of_read(void)
{
    const unsigned left = atomic_load(&reads_to_fault);
    if (left == 0) {
        return HOST_READ_WELL;
    }
    atomic_store(&reads_to_fault, left - 1u);
    return left == 1u ? read_fault : HOST_READ_WELL;
}

void hal_provoke_fault(uint32_t kind)
{
    if (kind == 1) {
        __builtin_trap();
    }
    if (kind == 2) {
        volatile const uint8_t *outside = hal_board.memory - 1; /* the page before the memory */
        (void)*outside;
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * choose.c: which kernel sets this build has, which of them the processor can run, and which one is taken.
 *
 * Guards here name instruction sets, never boards. Nothing in this file is compiled with an extension switched on, so
 * that it runs on a processor that lacks it.
 */
#include "../colibri.h"
#include "kernels.h"

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)

struct cpuid {
    uint32_t eax, ebx, ecx, edx;
};

static struct cpuid cpuid(uint32_t leaf)
{
    struct cpuid r;
    __asm__ volatile("cpuid" : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx) : "0"(leaf), "2"(0));
    return r;
}

/* Intel SDM volume 1, 14.7.1: AVX2 may be used when the processor has it and the system saves the upper halves of
 * the registers, which XCR0 tells; XCR0 may be read when OSXSAVE is set. */
static bool has_avx2(void)
{
    const uint32_t osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if (cpuid(0).eax < 7 || (cpuid(1).ecx & (osxsave | avx | f16c)) != (osxsave | avx | f16c)) {
        return false;
    }
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6u) == 6u && ((cpuid(7).ebx >> 5) & 1u) != 0;
}

#elif defined(__aarch64__)

/* Arm ARM D19.2.61, ID_AA64ISAR0_EL1: bits 47:44, DP. Linux lets EL0 read it, bare metal runs above. */
static bool has_dotprod(void)
{
    uint64_t features;
    __asm__("mrs %0, ID_AA64ISAR0_EL1" : "=r"(features));
    return ((features >> 44) & 15u) != 0;
}

#endif

const struct col_kernel_set col_kernel_sets[] = {
    {&col_kernels_scalar, always},
#if defined(__x86_64__)
    {&col_kernels_avx2, has_avx2},
#elif defined(__aarch64__)
    {&col_kernels_neon, always},
    {&col_kernels_neon_dotprod, has_dotprod},
#endif
    {NULL, NULL},
};

static bool same_text(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

const struct col_kernels *col_kernels_find(const char *name)
{
    for (const struct col_kernel_set *set = col_kernel_sets; set->kernels != NULL; set++) {
        if (same_text(set->kernels->name, name)) {
            return set->usable() ? set->kernels : NULL;
        }
    }
    return NULL;
}

const char *colibri_kernels_name(uint32_t index)
{
    for (const struct col_kernel_set *set = col_kernel_sets; set->kernels != NULL; set++) {
        if (set->usable() && index-- == 0) {
            return set->kernels->name;
        }
    }
    return NULL;
}

/* The benchmark's product: decoding one token in int8, which is what a device does most. Scratch holds the weights,
 * then the activations, their scales and the outputs. */
#define BENCH_ROW_TILES 8u
#define BENCH_BLOCKS 16u

struct bench {
    struct col_tile_q8 w[BENCH_ROW_TILES * BENCH_BLOCKS];
    int8_t x[BENCH_BLOCKS * COL_BLOCK];
    float xscale[BENCH_BLOCKS];
    float y[BENCH_ROW_TILES * COL_TILE_ROWS];
};
_Static_assert(sizeof(struct bench) <= COLIBRI_SELFTEST_BYTES, "the benchmark must fit the self-test's scratch");

/* Products per 2^20 ticks in the best of three trials, each long enough for the clock to see. */
static uint64_t measure(const struct col_kernels *kernels, uint64_t (*now)(void *user), void *user,
                        uint64_t ticks_per_second, struct bench *bench)
{
    const uint32_t most = 256; /* a clock that stands still must not hold up the boot */
    uint64_t wanted = ticks_per_second / 2000u; /* half a millisecond */
    uint64_t best = 0;
    for (unsigned trial = 0; trial < 3; trial++) {
        uint32_t done = 0;
        uint64_t ticks;
        uint64_t start = now(user);
        do {
            kernels->matmul_q8(bench->w, BENCH_ROW_TILES, BENCH_BLOCKS, bench->x, bench->xscale, 1, bench->y, 0);
            done++;
            ticks = now(user) - start;
        } while (ticks < wanted && done < most);
        uint64_t rate = ((uint64_t)done << 20) / (ticks > 0 ? ticks : 1);
        best = rate > best ? rate : best;
    }
    return best;
}

const struct col_kernels *col_kernels_choose(uint64_t (*now)(void *user), void *user, uint64_t ticks_per_second,
                                             void *scratch)
{
    const struct col_kernels *chosen = &col_kernels_scalar;
    uint64_t chosen_rate = 0;
    for (const struct col_kernel_set *set = col_kernel_sets; set->kernels != NULL; set++) {
        struct colibri_selftest_report report;
        if (!set->usable() ||
            colibri_selftest(set->kernels->name, scratch, COLIBRI_SELFTEST_BYTES, &report) != COLIBRI_OK) {
            continue;
        }
        if (now == NULL || ticks_per_second == 0) {
            chosen = set->kernels;
            continue;
        }
        __builtin_memset(scratch, 0, sizeof(struct bench));
        uint64_t rate = measure(set->kernels, now, user, ticks_per_second, scratch);
        if (rate + rate / 8u >= chosen_rate) { /* noise must not overrule the order of preference */
            chosen = set->kernels;
            chosen_rate = rate;
        }
    }
    return chosen;
}

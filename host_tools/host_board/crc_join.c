/* SPDX-License-Identifier: Apache-2.0
 *
 * crc_join.c: CRCs are polynomials over GF(2), see crc_join.h.
 *
 * A piece's CRC, followed by n zero bytes, is the piece's polynomial times x^(8n) modulo the CRC's. The CRC of the
 * whole is the exclusive or of its pieces so moved to their places: the inversions of the CRC's start and end cancel,
 * for each piece begins anew. Bit 31 of a word is the coefficient of x^0, as in colibri_crc32. */
#include "crc_join.h"

#define POLYNOMIAL 0xedb88320u
#define ONE 0x80000000u /* x^0 */

static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = ONE; bit != 0; bit >>= 1) {
        product ^= (a & bit) != 0 ? b : 0;
        b = b >> 1 ^ ((b & 1u) != 0 ? POLYNOMIAL : 0);
    }
    return product;
}

/* x^(8 * bytes) */
static uint32_t power(uint64_t bytes)
{
    uint32_t result = ONE;
    for (uint32_t square = ONE >> 8; bytes != 0; bytes >>= 1) {
        result = (bytes & 1u) != 0 ? multiply(result, square) : result;
        square = multiply(square, square);
    }
    return result;
}

void crc_join_begin(struct crc_join *join, size_t bytes)
{
    *join = (struct crc_join){.bytes = bytes};
}

void crc_join_add(struct crc_join *join, size_t from, size_t bytes, uint32_t crc)
{
    join->crc ^= multiply(crc, power(join->bytes - from - bytes));
}

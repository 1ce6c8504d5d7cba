/* SPDX-License-Identifier: Apache-2.0
 *
 * console.c: see console.h.
 */
#include "console.h"

static void put(const char *text, size_t bytes)
{
    hal_board.console.api->write(hal_board.console.config, hal_board.console.state, (const uint8_t *)text, bytes);
}

void print(const char *text)
{
    size_t bytes = 0;
    while (text[bytes] != '\0') {
        bytes++;
    }
    put(text, bytes);
}

void print_hex(const char *name, uint64_t value)
{
    char digits[18] = "0x";
    for (int i = 0; i < 16; i++) {
        digits[2 + i] = "0123456789abcdef"[value >> (60 - 4 * i) & 15u];
    }
    print(" ");
    print(name);
    print("=");
    put(digits, sizeof digits);
}

void print_signed(const char *name, int64_t value)
{
    char digits[20];
    size_t first = sizeof digits;
    uint64_t left = value < 0 ? 0u - (uint64_t)value : (uint64_t)value;
    do {
        digits[--first] = (char)('0' + left % 10u);
        left /= 10u;
    } while (left != 0);
    print(" ");
    print(name);
    print(value < 0 ? "=-" : "=");
    put(digits + first, sizeof digits - first);
}

void read_line(char *line, size_t capacity)
{
    size_t length = 0;
    for (;;) {
        uint8_t byte;
        if (hal_board.console.api->read(hal_board.console.config, hal_board.console.state, &byte, 1) == 0) {
            continue;
        }
        if (byte == '\n') {
            break;
        }
        if (length + 1 < capacity) {
            line[length++] = (char)byte;
        }
    }
    line[length] = '\0';
}

uint64_t next_number(const char **cursor)
{
    const char *c = *cursor;
    while (*c == ' ') {
        c++;
    }
    uint64_t base = 10;
    if (c[0] == '0' && c[1] == 'x') {
        base = 16;
        c += 2;
    }
    uint64_t value = 0;
    for (;; c++) {
        uint64_t digit;
        if (*c >= '0' && *c <= '9') {
            digit = (uint64_t)(*c - '0');
        } else if (base == 16 && *c >= 'a' && *c <= 'f') {
            digit = (uint64_t)(*c - 'a') + 10u;
        } else {
            break;
        }
        value = value * base + digit;
    }
    *cursor = c;
    return value;
}

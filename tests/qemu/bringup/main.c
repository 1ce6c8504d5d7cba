/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c: a board's bring-up program: it takes the place of the runtime and does what a test asks for, one line per
 * command, one line per answer. Answers carry what was measured; the test decides what is right.
 */
#include "checks.h"
#include "console.h"

#define LINE 256u

static bool is(const char *line, const char *command, const char **arguments)
{
    while (*command != '\0') {
        if (*line++ != *command++) {
            return false;
        }
    }
    *arguments = line;
    return *line == ' ' || *line == '\0';
}

void hal_on_fault(const struct hal_fault *fault)
{
    print("fault");
    print_signed("kind", fault->kind);
    print_hex("pc", fault->pc);
    print_hex("sp", fault->sp);
    print_hex("cause", fault->cause);
    print_hex("address", fault->address);
    print_hex("status", fault->status);
    for (uint32_t i = 0; i < fault->register_count; i++) {
        print_hex("r", fault->registers[i]);
    }
    print("\n");
    check_after_fault();
    hal_board.power.api->reset(hal_board.power.config);
}

int runtime_main(void)
{
    check_start();
    print("bring-up");
    print_hex("memory", (uintptr_t)hal_board.memory);
    print_hex("bytes", hal_board.memory_bytes);
    print_signed("baud", hal_board.link_baud);
    print(" name=");
    print(hal_board.name);
    print(" architecture=");
    print(hal_board.architecture);
    print("\n");
    for (;;) {
        char line[LINE];
        const char *arguments;
        read_line(line, sizeof line);
        if (is(line, "echo", &arguments)) {
            print("echo");
            print(arguments);
        } else if (is(line, "clock", &arguments)) {
            check_clock();
        } else if (is(line, "memory", &arguments)) {
            check_memory();
        } else if (is(line, "copies", &arguments)) {
            check_copies();
        } else if (is(line, "floats", &arguments)) {
            check_floats();
        } else if (is(line, "disk", &arguments)) {
            check_disk();
        } else if (is(line, "read", &arguments)) {
            check_read(arguments);
        } else if (is(line, "write", &arguments)) {
            check_write(arguments);
        } else if (is(line, "kick", &arguments)) {
            check_kick();
        } else if (is(line, "starve", &arguments)) {
            check_starve();
        } else if (is(line, "wait", &arguments)) {
            check_wait();
        } else if (is(line, "sleep", &arguments)) {
            check_sleep();
        } else if (is(line, "overflow", &arguments)) {
            check_overflow();
        } else if (is(line, "fault", &arguments)) {
            hal_provoke_fault((uint32_t)next_number(&arguments));
            print("survived");
        } else if (is(line, "doublefault", &arguments)) {
            check_double_fault();
        } else if (is(line, "reset", &arguments)) {
            hal_board.power.api->reset(hal_board.power.config);
        } else if (is(line, "off", &arguments)) {
            hal_board.power.api->off(hal_board.power.config, (uint32_t)next_number(&arguments));
        } else {
            print("unknown command");
        }
        print("\n");
    }
}

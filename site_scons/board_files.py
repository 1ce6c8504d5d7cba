# SPDX-License-Identifier: Apache-2.0
"""Makes from a board's TOML file the C file that defines its devices, and the linker script.

A device table becomes a const struct DRIVER_config whose fields are the table's keys, with DRIVER_api and, where the
driver's header declares one, a DRIVER_state. A table inside a device is a device of its own, handed to the outer one; a
list of tables becomes an array with a count.
"""

import re
from pathlib import Path

HEADER = "/* Made from boards/{name}.toml by the build: change that file, not this one. */\n"

# The role of a device in struct hal_board, and the type that joins api, config and state.
BOARD_DEVICES = ("console", "clock", "block", "power", "watchdog")
PAGE = 4096


def drivers(data):
    """Names of all drivers of a board, those of inner devices too."""
    found = set()

    def walk(table):
        if "driver" in table:
            found.add(table["driver"])
        for value in table.values():
            if isinstance(value, dict):
                walk(value)

    for role in ("pins", *BOARD_DEVICES):
        walk(data.get(role, {}))
    return sorted(found)


def _literal(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:#x}u" if value < 1 << 32 else f"{value:#x}ull"


class _Writer:
    def __init__(self, driver_directory):
        self.directory = Path(driver_directory)
        self.lines = []

    def _has(self, driver, part):
        header = (self.directory / f"{driver}.h").read_text("utf-8")
        return re.search(rf"^struct {driver}_{part} \{{", header, re.MULTILINE) is not None

    def device(self, name, table):
        """Writes the definitions; returns the initializer that joins them."""
        driver = table["driver"]
        fields = []
        for key, value in table.items():
            if key == "driver":
                continue
            if isinstance(value, dict):
                fields.append(f".{key} = {self.device(f'{name}_{key}', value)}")
            elif isinstance(value, list):
                rows = ", ".join(
                    "{" + ", ".join(f".{k} = {_literal(v)}" for k, v in row.items()) + "}" for row in value
                )
                self.lines.append(f"static const struct {driver}_{key} {name}_{key}[] = {{{rows}}};")
                fields += [f".{key} = {name}_{key}", f".{key}_count = {len(value)}u"]
            else:
                fields.append(f".{key} = {_literal(value)}")
        self.lines.append(f"static const struct {driver}_config {name}_config = {{{', '.join(fields)}}};")
        joined = f".api = &{driver}_api, .config = &{name}_config"
        if self._has(driver, "state"):
            self.lines.append(f"static struct {driver}_state {name}_state;")
            joined += f", .state = &{name}_state"
        return f"{{{joined}}}"


def _table_count(memory):
    """Upper bound of the MMU's tables: one per GB touched, and a pair below each end that is not a multiple of 2 MB.
    The firmware's own sections have six such ends."""
    regions = [(memory["ram_base"], memory["ram_bytes"])] + [(r["base"], r["bytes"]) for r in memory["device_regions"]]
    gigabytes = {g for base, size in regions for g in range(base >> 30, (base + size - 1 >> 30) + 1)}
    ends = {end >> 21 for base, size in regions for end in (base, base + size) if end % (2 << 20)}
    return 1 + len(gigabytes) + len(ends) + 6


def board_c(data, driver_directory):
    writer = _Writer(driver_directory)
    devices = {role: writer.device(role, data[role]) for role in BOARD_DEVICES}
    pins = writer.device("pins", data["pins"]) if "pins" in data else "{.api = NULL}"
    memory = data["memory"]
    lines = [HEADER.format(name=data["name"]), '#include "parts.h"']
    lines += [f'#include "drivers/{driver}.h"' for driver in drivers(data)]
    lines += [
        "",
        *writer.lines,
        "",
        f"const struct hal_pins hal_board_pins = {pins};",
        "",
        "struct hal_board hal_board = {",
    ]
    lines += [f'    .name = "{data["name"]}",', f'    .architecture = "{data["architecture"]}",']
    lines += [f"    .{role} = {value}," for role, value in devices.items()]
    lines += [f"    .link_baud = {data['link']['baud']}u,", "};"]
    if data["architecture"] == "aarch64":
        regions = memory["device_regions"]
        lines += ["", "const struct hal_region hal_device_regions[] = {"]
        lines += [f"    {{{_literal(r['base'])}, {_literal(r['bytes'])}}}, /* {r['name']} */" for r in regions]
        lines += ["};", f"const uint32_t hal_device_region_count = {len(regions)}u;"]
        count = _table_count(memory)
        lines += [
            "",
            "extern uint64_t hal_mmu_tables[][512];",
            "extern const uint32_t hal_mmu_table_count;",
            f"_Alignas({PAGE}) uint64_t hal_mmu_tables[{count}][512];",
            f"const uint32_t hal_mmu_table_count = {count}u;",
        ]
    return "\n".join(lines) + "\n"


def linker_script(data):
    memory = data["memory"]
    processor = data["processor"]
    end = memory["ram_base"] + memory["ram_bytes"]
    return (
        HEADER.format(name=data["name"])
        + f"""\
ENTRY(_start)

MEMORY
{{
    ram : ORIGIN = {memory["load_address"]:#x}, LENGTH = {end - memory["load_address"]:#x}
}}

PHDRS
{{
    code PT_LOAD FLAGS(5);
    constants PT_LOAD FLAGS(4);
    data PT_LOAD FLAGS(6);
}}

hal_boot_hart = {processor.get("boot_hart", 0):#x};
hal_spin_table = {processor.get("spin_table", 0):#x};
hal_ram_end = {end:#x};

SECTIONS
{{
    .text : {{
        hal_image_start = .;
        KEEP(*(.boot))
        *(.text .text.*)
    }} > ram :code

    .rodata ALIGN({PAGE}) : {{
        hal_text_end = .;
        *(.rodata .rodata.* .srodata .srodata.*)
    }} > ram :constants

    .data ALIGN({PAGE}) : {{
        hal_rodata_end = .;
        *(.data .data.*)
        __global_pointer$ = . + 0x800;
        *(.sdata .sdata.*)
        . = ALIGN(16);
    }} > ram :data

    .bss (NOLOAD) : {{
        . = ALIGN(16);
        hal_bss_start = .;
        *(.sbss .sbss.* .bss .bss.* COMMON)
        . = ALIGN(16);
        hal_bss_end = .;
    }} > ram :data

    /* Not mapped: a stack that grows too far traps. */
    .stack (NOLOAD) : {{
        . = ALIGN({PAGE});
        hal_stack_guard = .;
        . += {PAGE};
        hal_stack_bottom = .;
        . += {memory["stack_bytes"]:#x};
        hal_stack_top = .;
        hal_fault_stack_bottom = .;
        . += {memory["fault_stack_bytes"]:#x};
        hal_fault_stack_top = .;
        . = ALIGN({PAGE});
        hal_memory_start = .;
    }} > ram :data

    /DISCARD/ : {{ *(.comment .note .note.* .eh_frame .eh_frame_hdr .riscv.attributes .ARM.attributes) }}
}}
"""
    )

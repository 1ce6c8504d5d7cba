# SPDX-License-Identifier: Apache-2.0
"""Does this model run on that board? The memory map, byte for byte, before anything is written to a card.

The arena is the engine's own figure (colibri_plan). What lies around it is what the device's runtime does with its
memory (firmware/runtime/setup.c):

    | firmware | image, or its front | arena | canary and prompt ids | ... free ... | self-test scratch |

The front of an image is all before its experts. Where only that is in memory, experts are read from the card into
slots of the arena (docs/expert-store.md). The host board maps the image's file, which then takes nothing of its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colibri_sdk.convert.description import Role
from colibri_sdk.convert.quantisation import QUANTISATIONS, parse
from colibri_sdk.convert.rotary import table_bytes
from colibri_sdk.engine.library import Library, Plan
from colibri_sdk.errors import ImageError
from colibri_sdk.image.layout import PAGE, TENSOR, TENSOR_ALIGN, Format, SectionKind, align_up, tensor_bytes
from colibri_sdk.image.reader import ImageFile, Record
from colibri_sdk.store import StoreChoice

if TYPE_CHECKING:
    from colibri_sdk.boards import Board

# Bytes behind the arena whose overwriting the runtime notices (firmware/runtime/service.h).
CANARY_BYTES = 64

# What this machine's board takes for itself, unless it is told otherwise (host_tools/host_board/main.c).
HOST_BYTES = 2 << 30

# Formats of the KV cache that take less memory, the more exact first.
_SMALLER_KV = {"f32": ("f16", "q8"), "f16": ("q8",)}

# Slack with which the runtime aligns the prompt's ids, and their size.
_IDS_ALIGN = 4
_ID_BYTES = 4

# The role of a layer's matrices, by the field of struct col_layer.
_ROLES = {
    "attention": Role.ATTENTION,
    "router": Role.ROUTER,
    "shared_gate": Role.ROUTER,
    "shared": Role.SHARED,
    "expert": Role.EXPERTS,
}


@dataclass(frozen=True)
class Area:
    """One line of the map. `address` is physical, None where the operating system chooses it."""

    name: str
    address: int | None
    bytes: int


@dataclass(frozen=True)
class Remedy:
    """A way to make the model fit: what to do, and the bytes that would then be needed."""

    text: str
    needed_bytes: int


@dataclass(frozen=True)
class MemoryMap:
    """A board's memory with a model in it.

    `needed_bytes` of the `available_bytes` are taken by `loaded_bytes` of the image, the arena and what the runtime
    keeps beside them. `store` is "memory", "block" or "mapped"; `plan` has the cache slots of "block".
    """

    board: str
    available_bytes: int
    needed_bytes: int
    store: str
    loaded_bytes: int
    plan: Plan
    areas: tuple[Area, ...]
    remedies: tuple[Remedy, ...]

    @property
    def fits(self) -> bool:
        return self.short_bytes == 0

    @property
    def short_bytes(self) -> int:
        """Bytes that are missing; 0 when it fits."""
        return max(0, self.needed_bytes - self.available_bytes)

    @property
    def free_bytes(self) -> int:
        """Bytes that stay unused."""
        return max(0, self.available_bytes - self.needed_bytes)


MEMORY = StoreChoice("memory")


def plan_board(
    board: Board,
    image: Path,
    *,
    context: int = 0,
    kv: str = "image",
    choice: StoreChoice = MEMORY,
    library: Library | None = None,
) -> MemoryMap:
    """The map of `image` on `board`, whose firmware is built when necessary.

    `context` and `kv` are as in Library.plan: what the map would be had the image been packed with these. `choice` is
    what the device is told (Device.configure), and decides as there.
    """
    available = HOST_BYTES
    if board.memory is not None:
        from colibri_sdk.build import build

        available = int(build(board).report["memory_bytes"])
    return memory_map(board, image, available, library or Library.load(), context=context, kv=kv, choice=choice)


def memory_map(
    board: Board,
    image: Path,
    available_bytes: int,
    library: Library,
    *,
    context: int = 0,
    kv: str = "image",
    choice: StoreChoice = MEMORY,
) -> MemoryMap:
    """The same for a firmware that leaves `available_bytes` at the end of the board's RAM, or on the host."""
    in_board = available_bytes
    if choice.memory_limit:
        # The limit is for image, arena and prompt; the self-test's scratch lies elsewhere.
        limited = choice.memory_limit // _step(library) * _step(library) + _scratch_bytes(library)
        available_bytes = min(available_bytes, limited)
    whole = library.plan(image, context=context, kv=kv)
    store, plan = "memory", whole
    if board.is_host and choice.store != "block":
        store = "mapped"
    elif whole.front_bytes < whole.image_bytes and (
        choice.store == "block" or (choice.store == "auto" and _needed(library, whole, "memory") > available_bytes)
    ):
        store, plan = "block", _block_plan(library, image, whole, available_bytes, choice.cache_slots)
    needed = _needed(library, plan, store)
    return MemoryMap(
        board=board.name,
        available_bytes=available_bytes,
        needed_bytes=needed,
        store=store,
        loaded_bytes=_loaded_bytes(plan, store),
        plan=plan,
        areas=tuple(_areas(board, in_board, plan, library, store)),
        remedies=tuple(_remedies(image, library, plan, store, available_bytes)) if needed > available_bytes else (),
    )


def _block_plan(library: Library, image: Path, whole: Plan, available: int, slots: int) -> Plan:
    """With `slots` slots per layer; with 0 as many as there is room for, and at least one."""

    def plan(cache_slots: int, arena_limit: int = 0) -> Plan:
        return library.plan(
            image, context=whole.context, kv=whole.kv_format, cache_slots=cache_slots, arena_limit=arena_limit
        )

    least = plan(slots or 1)
    if slots or _needed(library, least, "block") > available:
        return least
    step = _step(library)
    room = (available - _scratch_bytes(library)) // step * step
    return plan(0, room - least.front_bytes - _behind_bytes(least))


def _loaded_bytes(plan: Plan, store: str) -> int:
    """What of the image is in the board's memory."""
    return {"memory": plan.image_bytes, "block": plan.front_bytes, "mapped": 0}[store]


def _needed(library: Library, plan: Plan, store: str) -> int:
    return _loaded_bytes(plan, store) + plan.arena_bytes + _beside(library, plan)


def _step(library: Library) -> int:
    """In which the runtime counts."""
    return library.constants["COLIBRI_ARENA_ALIGN"]


def _scratch_bytes(library: Library) -> int:
    return align_up(library.constants["COLIBRI_SELFTEST_BYTES"], _step(library))


def _beside(library: Library, plan: Plan) -> int:
    """What the runtime keeps beside image and arena."""
    return align_up(_behind_bytes(plan), _step(library)) + _scratch_bytes(library)


def _behind_bytes(plan: Plan) -> int:
    """Canary and prompt ids, behind the arena."""
    return CANARY_BYTES + _IDS_ALIGN + _ID_BYTES * plan.context


def _areas(board: Board, available: int, plan: Plan, library: Library, store: str) -> Iterator[Area]:
    at: int | None = None
    if board.memory is not None:
        ram = board.memory.ram
        at = ram.end - available
        if board.memory.load_address > ram.base:
            yield Area("reserved below the firmware", ram.base, board.memory.load_address - ram.base)
        yield Area("firmware", board.memory.load_address, at - board.memory.load_address)
    loaded = _loaded_bytes(plan, store)
    names = {"memory": "image", "block": "front of the image", "mapped": "image, mapped: none of this memory"}
    yield Area(names[store], at, plan.image_bytes if store == "mapped" else loaded)
    arena = None if at is None else at + loaded
    for region in plan.regions:
        yield Area(f"arena: {region.name}", None if arena is None else arena + region.offset, region.bytes)
    behind = None if arena is None else arena + plan.arena_bytes
    yield Area("canary and prompt ids", behind, _behind_bytes(plan))
    scratch = library.constants["COLIBRI_SELFTEST_BYTES"]
    end = None if board.memory is None else board.memory.ram.end - scratch
    yield Area("self-test scratch", end, scratch)


# -------------------------------------------------------------------------------------------------------- remedies


def _remedies(image: Path, library: Library, plan: Plan, store: str, available: int) -> list[Remedy]:
    """What would make it fit, the smallest change first; each alone is enough. Where nothing would, what to do then."""
    with ImageFile(image) as file:
        return list(_changes(file, image, library, plan, store, available)) or [
            _last_resort(file, image, library, plan, store)
        ]


def _changes(
    file: ImageFile, image: Path, library: Library, plan: Plan, store: str, available: int
) -> Iterator[Remedy]:
    for kv in _SMALLER_KV.get(plan.kv_format, ()):
        needed = _needed(library, _like(library, image, plan, kv=kv), store)
        if needed <= available:
            yield Remedy(f"pack with --kv {kv}", needed)
            break
    context = _largest_context(file, image, library, plan, store, available)
    if context is not None:
        yield Remedy(f"pack with --context {context[0]}, the largest that fits", context[1])
    if store == "mapped":
        return  # the image takes nothing, and slots would be more
    if store == "memory":
        for size, quant in sorted(((repacked_bytes(file, quant), quant) for quant in QUANTISATIONS), reverse=True):
            needed = size + plan.arena_bytes + _beside(library, plan)
            if size < plan.image_bytes and needed <= available:
                yield Remedy(f"pack with --quant {quant}", needed)
                break
    if plan.front_bytes < plan.image_bytes and plan.cache_slots != 1:
        fitting = _block_plan(library, image, plan, available, 0)
        needed = _needed(library, fitting, "block")
        if needed <= available:
            text = "keep fewer experts: " if store == "block" else "read experts from the card: --store block "
            yield Remedy(f"{text}--cache-slots {fitting.cache_slots}", needed)


def _last_resort(file: ImageFile, image: Path, library: Library, plan: Plan, store: str) -> Remedy:
    advice, needed = "take a board with more memory or a smaller model: ", _needed(library, plan, store)
    if store == "mapped":
        return Remedy("give it more memory or take a smaller model: this one needs", needed)
    if store == "block":
        one_slot = _like(library, image, plan, cache_slots=1)
        return Remedy(f"{advice}with one cache slot this one needs", _needed(library, one_slot, store))
    return Remedy(
        f"{advice}packed with --quant q4 this one needs", needed - plan.image_bytes + repacked_bytes(file, "q4")
    )


def _like(
    library: Library, image: Path, plan: Plan, *, context: int = 0, kv: str = "", cache_slots: int | None = None
) -> Plan:
    """The plan with something else in it; experts come from where they came from, or into `cache_slots` slots."""
    return library.plan(
        image,
        context=context or plan.context,
        kv=kv or plan.kv_format,
        cache_slots=cache_slots if cache_slots is not None else plan.cache_slots or None,
    )


def _largest_context(
    file: ImageFile, image: Path, library: Library, plan: Plan, store: str, available: int
) -> tuple[int, int] | None:
    """The largest context that fits and the bytes it needs; None when not even one position does."""
    dim = int(file.model["rotary_dim"])
    table = align_up(file.sections[SectionKind.ROPE].bytes, PAGE)

    def needed(context: int) -> int:
        smaller = _needed(library, _like(library, image, plan, context=context), store)
        return smaller if store == "mapped" else smaller - table + align_up(table_bytes(dim, context), PAGE)

    low, high = 0, plan.context
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= available else (low, middle)
    return (low, needed(low)) if low else None


def repacked_bytes(file: ImageFile, quant: str) -> int:
    """The size of the same model packed as `quant`; exact but for the card, whose text changes with it."""
    plan = parse(quant)

    def placed(tensors: list[tuple[Record, Role, int | None]]) -> int:
        end = 0
        for tensor, role, layer in tensors:
            vector = int(tensor["format"]) == Format.F32_VECTOR
            fmt = Format.F32_VECTOR if vector else plan.encoding(role, layer).format
            end = align_up(end, TENSOR_ALIGN) + tensor_bytes(fmt, int(tensor["rows"]), int(tensor["cols"]))
        return end

    model = file.model
    tied = model["head"]["weight"] == model["embedding"]
    resident: list[tuple[Record, Role, int | None]] = [
        (tensor, Role.HEAD if path[0] == "head" else Role.EMBEDDING, None)
        for path, tensor in _tensors(model)
        if not (tied and path == ("head", "weight"))
    ]
    experts = place = 0
    for index, layer in enumerate(file.layers):
        blob: list[tuple[Record, Role, int | None]] = []
        for path, tensor in _tensors(layer):
            (blob if path[0] == "expert" else resident).append((tensor, _ROLES.get(path[0], Role.VECTOR), index))
        experts += int(layer["router"]["experts"]) * align_up(placed(blob), PAGE)
        place = max(place, align_up(placed(blob), PAGE))
    total = PAGE + align_up(placed(resident), PAGE) + experts + file.spare_places[0] * place
    for kind, section in file.sections.items():
        if kind not in (SectionKind.RESIDENT, SectionKind.EXPERTS):
            total += align_up(section.bytes, PAGE)
    return total


def _tensors(record: Record, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Record]]:
    """The tensors in a struct of the image that exist, with their paths."""
    for name in record.dtype.names or ():
        field = record[name]
        if field.dtype == TENSOR:
            if int(field["format"]):
                yield (*path, name), field
        elif field.dtype.names:
            yield from _tensors(field, (*path, name))


def require_fit(result: MemoryMap) -> None:
    """Raises ImageError with the numbers and the remedies when the model does not fit."""
    if not result.fits:
        raise ImageError(
            f"the model needs {result.needed_bytes} bytes on {result.board}, {result.short_bytes} more than it has",
            "To make it fit, either " + ", or ".join(remedy.text for remedy in result.remedies) + ".",
            where="memory",
            got=result.needed_bytes,
            wanted=result.available_bytes,
        )

# SPDX-License-Identifier: Apache-2.0
"""Rotary tables. The device has no sine and no cosine: it reads these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from colibri_sdk.convert.checks import is_usable
from colibri_sdk.convert.description import Floats, Rope
from colibri_sdk.errors import CheckpointError

_ROWS_AT_ONCE = 4096


def inverse_frequencies(theta: float, dim: int) -> Floats:
    """1 / theta^(2i / dim) for i below dim / 2, rounded to float32 where transformers rounds: after the power and after
    the division.

    Rounding once would be nearer to the formula, and further from the numbers that models were trained with: an error
    of 1e-7 in a frequency is 1e-4 in the angle at position 1000. With these roundings cosines and sines are within
    one unit in the last place of those of transformers; measured at bases 1e4 and 1e6, up to context 512. Powers and
    cosines are taken in float64, where libraries agree to the last bit that survives the rounding.
    """
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    power = np.power(np.float64(theta), exponent.astype(np.float64)).astype(np.float32)
    return np.float32(1.0) / power


def rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings in either spelling: rope_theta with rope_scaling, or all inside rope_parameters."""
    settings: dict[str, Any] = {}
    for place in ("rope_scaling", "rope_parameters"):
        block = config.get(place)
        if block is not None and not isinstance(block, dict):
            raise CheckpointError(
                f"config.json has {place} = {block!r}; an object or null is expected",
                "Fetch config.json again.",
                where=place,
            )
        for key, value in (block or {}).items():
            if isinstance(value, dict):
                raise CheckpointError(
                    f"config.json has {place} for each kind of layer ({key}), which is not supported",
                    "Supported: one for all layers.",
                    where=place,
                )
            _settle(settings, "rope_type" if key == "type" else key, value)
    for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        _settle(settings, key, config.get(key))
    settings.setdefault("rope_type", "default")
    if settings["rope_type"] in ("yarn", "llama3", "longrope"):
        settings.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    return settings


def _settle(settings: dict[str, Any], key: str, value: Any) -> None:
    """settings[key] = value, unless value is None; refused where another one is there already."""
    known = settings.setdefault(key, value) if value is not None else None
    if known is not value and known != value:
        raise CheckpointError(
            f"config.json gives {key} as {known!r} and, in another place, as {value!r}",
            "Fetch config.json again.",
            where=key,
        )


def _number(settings: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = settings.get(key)
    if value is None and default is not None:
        return default
    if not is_usable(value):
        raise CheckpointError(
            f"config.json's rotary settings have {key} = {value!r}; a positive number is expected",
            "Fetch config.json again.",
            where=key,
        )
    return float(value)


def mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's attention temperature (Peng et al., 2023): 0.1 weight ln(factor) + 1, 1 where nothing is stretched."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def yarn_factor(config: Mapping[str, Any]) -> float:
    """How far the context is stretched: `factor`, or the ratio of the new context to the original one."""
    settings = rope_settings(config)
    if settings.get("factor") is None:
        return _number(config, "max_position_embeddings") / _number(settings, "original_max_position_embeddings")
    return _number(settings, "factor")


@dataclass(frozen=True)
class _Base:
    """What every scaling starts from."""

    settings: Mapping[str, Any]
    config: Mapping[str, Any]
    theta: float
    dim: int

    @property
    def plain(self) -> Floats:
        return inverse_frequencies(self.theta, self.dim)

    def number(self, key: str) -> float:
        return _number(self.settings, key)


def _fixed(dim: int, frequencies: Floats, factor: float = 1.0) -> Rope:
    """Tables whose frequencies do not depend on the context."""
    return Rope(dim, lambda _: frequencies, factor)


def _default(base: _Base) -> Rope:
    """As the model was trained, without any scaling (Su et al., 2021)."""
    return _fixed(base.dim, base.plain)


def _linear(base: _Base) -> Rope:
    """Positions divided by a factor (Chen et al., 2023)."""
    return _fixed(base.dim, base.plain / np.float32(base.number("factor")))


def _dynamic(base: _Base) -> Rope:
    """NTK scaling: a base that grows with the context."""
    trained, stretch, dim = _number(base.config, "max_position_embeddings"), base.number("factor"), base.dim
    if dim <= 2:
        raise CheckpointError(
            f"config.json scales rotary positions by 'dynamic' in heads of {dim} dimensions",
            "More than 2 are needed.",
            where="rope_type",
        )

    def stretched(context: int) -> Floats:
        longest = max(float(context), trained)
        theta = base.theta * ((stretch * longest / trained) - (stretch - 1)) ** (dim / (dim - 2))
        return inverse_frequencies(theta, dim)

    return Rope(dim, stretched)


def _yarn(base: _Base) -> Rope:
    """YaRN (Peng et al., 2023): low frequencies are interpolated, high ones kept, a ramp between."""
    settings, theta, dim, factor = base.settings, base.theta, base.dim, yarn_factor(base.config)
    original = _number(settings, "original_max_position_embeddings")
    if settings.get("attention_factor") is not None:
        attention = _number(settings, "attention_factor")
    elif settings.get("mscale") and settings.get("mscale_all_dim"):
        attention = mscale(factor, _number(settings, "mscale")) / mscale(factor, _number(settings, "mscale_all_dim"))
    else:
        attention = mscale(factor)

    def turning(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turning(_number(settings, "beta_fast", 32.0)), turning(_number(settings, "beta_slow", 1.0))
    if settings.get("truncate") is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    positions = np.power(np.float64(theta), exponent.astype(np.float64)).astype(np.float32)
    kept = np.float32(1.0) / positions
    stretched = np.float32(1.0) / (np.float32(factor) * positions)
    mix = np.float32(1.0) - ramp.astype(np.float32)
    return _fixed(dim, stretched * (np.float32(1.0) - mix) + kept * mix, attention)


def _llama3(base: _Base) -> Rope:
    """Llama 3.1's scaling: long wavelengths divided by the factor, short ones kept, a ramp between."""
    frequencies = base.plain
    factor, original = base.number("factor"), base.number("original_max_position_embeddings")
    low, high = base.number("low_freq_factor"), base.number("high_freq_factor")
    if low >= high:
        raise CheckpointError(
            f"config.json's rotary settings have low_freq_factor = {low} and high_freq_factor = {high}",
            "The first must be below the second.",
            where="low_freq_factor",
        )
    wavelength = np.float32(2 * math.pi) / frequencies
    scaled = np.where(wavelength > original / low, frequencies / np.float32(factor), frequencies)
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    smoothed = (np.float32(1.0) - smooth) * scaled / np.float32(factor) + smooth * scaled
    between = ~(wavelength < original / high) & ~(wavelength > original / low)
    return _fixed(base.dim, np.where(between, smoothed, scaled).astype(np.float32))


def _divisors(base: _Base, key: str) -> Floats:
    """A divisor for each frequency, from the rotary settings."""
    found = base.settings.get(key)
    usable = isinstance(found, list | tuple) and len(found) == base.dim // 2 and all(map(is_usable, found))
    if not usable:
        raise CheckpointError(
            f"the rotary settings have {key} = {str(found)[:100]}; {base.dim // 2} positive numbers are expected",
            "The file is damaged, or of another model.",
            where=key,
        )
    return np.asarray(found, np.float32)


def _longrope(base: _Base) -> Rope:
    """LongRoPE (Ding et al., 2024): a divisor for each frequency, of two sets; the image's context says which.

    transformers takes the short set up to the original context and changes to the long one, for all positions, when a
    text grows beyond it. An image has one table: the long set when it is packed for more positions than the original
    context, else the short one.
    """
    original = base.number("original_max_position_embeddings")
    short, long = (_divisors(base, key) for key in ("short_factor", "long_factor"))
    if base.settings.get("attention_factor") is not None:
        attention = base.number("attention_factor")
    else:
        stretch = yarn_factor(base.config)
        attention = 1.0 if stretch <= 1.0 else math.sqrt(1 + math.log(stretch) / math.log(original))
    exponent = np.arange(0, base.dim, 2, dtype=np.float32) / np.float32(base.dim)
    positions = np.power(np.float64(base.theta), exponent.astype(np.float64)).astype(np.float32)
    return Rope(
        base.dim, lambda context: np.float32(1.0) / ((long if context > original else short) * positions), attention
    )


def _factors(base: _Base) -> Rope:
    """A divisor for each frequency, computed by someone else: GGUF files hold Llama 3.1's scaling so."""
    return _fixed(base.dim, base.plain / _divisors(base, "factors"))


# Each after the transformers library's float32 arithmetic.
SCALINGS: Mapping[str, Callable[[_Base], Rope]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "factors": _factors,
}


def _rotating(settings: Mapping[str, Any], head_dim: int, default_part: float | None) -> int:
    """Dimensions of a head that rotate."""
    part = _number(settings, "partial_rotary_factor", 1.0 if default_part is None else default_part)
    if default_part is None and part != 1.0:
        raise CheckpointError(
            f"config.json has partial_rotary_factor = {part}, which is not supported with this architecture",
            "Supported: 1.0.",
            where="partial_rotary_factor",
        )
    dim = int(head_dim * part)
    if dim % 2 or not 2 <= dim <= head_dim:
        raise CheckpointError(
            f"{dim} of {head_dim} dimensions of a head would rotate; rotary positions need pairs",
            "config.json may be damaged.",
            where="head_dim",
        )
    return dim


def from_config(
    config: Mapping[str, Any], head_dim: int, default_theta: float, default_part: float | None = None
) -> Rope:
    """The rotary tables of config.json for heads of `head_dim` dimensions. `default_part` is the share of them that
    rotates where config.json does not say; None: all do, and config.json must not say otherwise.

    Raises CheckpointError naming a scaling that is not in SCALINGS.
    """
    settings = rope_settings(config)
    kind = settings["rope_type"]
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise CheckpointError(
            f"config.json scales rotary positions by {kind!r}, which is not supported",
            f"Supported: {', '.join(SCALINGS)}.",
            where="rope_type",
        )
    theta = _number(settings, "rope_theta", default_theta)
    base = _Base(settings, config, theta, _rotating(settings, head_dim, default_part))
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            rope = SCALINGS[kind](base)
            rope.frequencies(1)
    except (ArithmeticError, ValueError) as error:
        raise CheckpointError(
            f"config.json's rotary settings give no numbers: {error}", "Fetch config.json again.", where="rope_theta"
        ) from error
    return rope


def longest_context(config: Mapping[str, Any], trained: int) -> int:
    """Positions that the settings allow: `trained`, as config.json states, or more where a scaling stretches them."""
    settings = rope_settings(config)
    if settings["rope_type"] == "default" or settings.get("factor") is None:
        return trained
    original = settings.get("original_max_position_embeddings") or trained
    return max(trained, int(_number(settings, "factor") * float(original)))


def tables(rope: Rope, rows: int) -> Iterator[bytes]:
    """The rope section in pieces: cosines [rows][dim / 2], then sines, float32; row = position."""
    frequencies = rope.frequencies(rows)
    for function in (np.cos, np.sin):
        for start in range(0, rows, _ROWS_AT_ONCE):
            positions = np.arange(start, min(start + _ROWS_AT_ONCE, rows), dtype=np.float32)
            angles = positions[:, np.newaxis] * frequencies
            table = function(angles.astype(np.float64)).astype("<f4")
            yield (table * np.float32(rope.factor)).tobytes()


def table_bytes(dim: int, rows: int) -> int:
    """Length of the rope section in bytes."""
    return 2 * rows * (dim // 2) * 4

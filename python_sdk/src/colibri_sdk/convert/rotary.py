# SPDX-License-Identifier: Apache-2.0
"""Rotary tables. The device has no sine and no cosine: it reads these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
    for key in ("rope_scaling", "rope_parameters"):
        block = config.get(key)
        if block is not None and not isinstance(block, dict):
            raise CheckpointError(f"config.json has {key} = {block!r}; an object or null is expected", where=key)
        settings |= block or {}
    outer = config.get("rope_theta")
    inner = settings.setdefault("rope_theta", outer)
    if outer is not None and inner is not outer and inner != outer:
        raise CheckpointError(
            f"config.json gives rope_theta as {outer} and, in rope_parameters, as {inner}",
            "Fetch config.json again.",
            where="rope_theta",
        )
    settings.setdefault("rope_type", settings.get("type", "default"))
    if settings.get("partial_rotary_factor") is None:
        settings["partial_rotary_factor"] = config.get("partial_rotary_factor")
    return settings


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
    """How far YaRN stretches the context: `factor`, or the ratio of the new context to the original one."""
    settings = rope_settings(config)
    if settings.get("factor") is None:
        return _number(config, "max_position_embeddings") / _number(settings, "original_max_position_embeddings")
    return _number(settings, "factor")


def _yarn(settings: Mapping[str, Any], theta: float, dim: int, factor: float) -> tuple[Floats, float]:
    """Frequencies and factor after YaRN: low frequencies are interpolated, high ones kept, a ramp between."""
    original = _number(settings, "original_max_position_embeddings")
    attention = settings.get("attention_factor")
    if attention is None:
        above, below = settings.get("mscale"), settings.get("mscale_all_dim")
        attention = mscale(factor, float(above)) / mscale(factor, float(below)) if above and below else mscale(factor)

    def turning(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turning(_number(settings, "beta_fast", 32.0)), turning(_number(settings, "beta_slow", 1.0))
    if settings.get("truncate", True):
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
    return stretched * (np.float32(1.0) - mix) + kept * mix, float(attention)


def _llama3(settings: Mapping[str, Any], frequencies: Floats) -> Floats:
    """Llama 3.1's scaling: long wavelengths divided by the factor, short ones kept, a ramp between."""
    factor, original = _number(settings, "factor"), _number(settings, "original_max_position_embeddings")
    low, high = _number(settings, "low_freq_factor"), _number(settings, "high_freq_factor")
    wavelength = np.float32(2 * math.pi) / frequencies
    scaled = np.where(wavelength > original / low, frequencies / np.float32(factor), frequencies)
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    smoothed = (np.float32(1.0) - smooth) * scaled / np.float32(factor) + smooth * scaled
    between = ~(wavelength < original / high) & ~(wavelength > original / low)
    return np.where(between, smoothed, scaled).astype(np.float32)


def _factors(settings: Mapping[str, Any], dim: int) -> Floats:
    """A divisor for each frequency, computed by someone else: GGUF files hold Llama 3.1's scaling so."""
    factors = np.asarray(settings.get("factors", []), np.float32)
    if factors.shape != (dim // 2,) or not np.isfinite(factors).all() or not (factors > 0).all():
        raise CheckpointError(
            f"the rotary settings have {factors.size} factors; {dim // 2} positive numbers are expected",
            "The file is damaged.",
            where="factors",
        )
    return factors


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

    Scalings: default, linear (Chen et al., 2023), dynamic (NTK), yarn, llama3, each after the transformers library's
    float32 arithmetic. Raises CheckpointError naming any other.
    """
    settings = rope_settings(config)
    theta = _number(settings, "rope_theta", default_theta)
    dim = _rotating(settings, head_dim, default_part)
    kind = settings["rope_type"]
    plain = inverse_frequencies(theta, dim)
    if kind == "default":
        return Rope(dim, lambda _: plain)
    if kind == "linear":
        factor = np.float32(_number(settings, "factor"))
        return Rope(dim, lambda _: plain / factor)
    if kind == "factors":
        divided = plain / _factors(settings, dim)
        return Rope(dim, lambda _: divided)
    if kind == "llama3":
        bent = _llama3(settings, plain)
        return Rope(dim, lambda _: bent)
    if kind == "yarn":
        frequencies, attention = _yarn(settings, theta, dim, yarn_factor(config))
        return Rope(dim, lambda _: frequencies, attention)
    if kind == "dynamic":
        trained, stretch = _number(config, "max_position_embeddings"), _number(settings, "factor")

        def stretched(context: int) -> Floats:
            longest = max(float(context), trained)
            base = theta * ((stretch * longest / trained) - (stretch - 1)) ** (dim / (dim - 2))
            return inverse_frequencies(base, dim)

        return Rope(dim, stretched)
    raise CheckpointError(
        f"config.json scales rotary positions by {kind!r}, which is not supported",
        "Supported: default, linear, dynamic, yarn, llama3.",
        where="rope_type",
    )


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

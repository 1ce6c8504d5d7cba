# SPDX-License-Identifier: Apache-2.0
"""What a model's routing costs on a board that does not hold all experts: recorded on this machine (record, trace),
replayed through the engine's own rule (replay), drawn for each size of the cache (curve, chart), pinned (pins); and
watched on a device while it answers (watch, balance, heatmap)."""

# SPDX-License-Identifier: Apache-2.0
"""The host's end of the link protocol (firmware/runtime/PROTOCOL.md).

frames.py      bytes on the line <-> frames
peer.py        sessions, acknowledgement, retransmission: a state machine without input, output or clock
transport.py   what carries the bytes
session.py     the thread that connects the two, and requests with their answers
messages.py    bodies of requests, results and events
symbols.py     addresses of a fault -> functions and lines
"""

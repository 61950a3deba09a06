"""Bytes that a save writes as tensors: the tree of values, and each rank's own."""

import dataclasses

import numpy

from ._state import Piece, own_name


def bytes_piece(name, data):
    """Returns bytes as a tensor."""
    return Piece(name, "U8", (len(data),), numpy.frombuffer(data, numpy.uint8))


def own_bytes(name, data):
    """Returns bytes that only this rank has, as a tensor."""
    return dataclasses.replace(bytes_piece(name, data), part_of=([len(data)], [0]))


def own_pieces(gathering):
    """Returns the tree of this rank's own values as a piece; empty if there are none."""
    tree = gathering.own_values()
    return [] if tree is None else [own_bytes(own_name(gathering.place[0]), tree)]


def given_of(pieces):
    """Returns pieces as the native store takes them."""
    return [(piece.name, piece.type, list(piece.shape), piece.data, piece.part_of) for piece in pieces]

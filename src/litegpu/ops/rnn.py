"""RNN: computes one step of a sequence."""

from __future__ import annotations

from litegpu.ops.base import add
from litegpu.ops.unidirectional_sequence_rnn import SequenceRnn


class Rnn(SequenceRnn):
    """Computes one step of an RNN with float weights."""

    name = "RNN"
    rank = 2


add(Rnn())

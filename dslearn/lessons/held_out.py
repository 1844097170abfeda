"""A piece of code that `tiny` has never seen, and how many bits it needs for it.

Written for the notebooks, in the manner of the standard library's own tests, which tiny was trained
on; it is in no Python's library. A thousand bytes measure a large effect, not a small one: figures
on whole held-out files are in docs/tiny.md.
"""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor

TEXT = """\
class RingBufferTest(unittest.TestCase):

    def setUp(self):
        self.buffer = RingBuffer(4)

    def tearDown(self):
        self.buffer.close()

    def test_empty(self):
        self.assertEqual(len(self.buffer), 0)
        self.assertRaises(IndexError, self.buffer.pop)

    def test_append(self):
        for i in range(10):
            self.buffer.append(i)
        self.assertEqual(list(self.buffer), [6, 7, 8, 9])
        self.assertEqual(self.buffer.pop(), 9)
        self.assertIsNone(self.buffer.last)

    def test_bad_size(self):
        for size in (-1, 0, None, "four"):
            with self.subTest(size=size):
                with self.assertRaises(ValueError):
                    RingBuffer(size)

    def test_repr(self):
        self.buffer.append("abc")
        self.assertEqual(repr(self.buffer), "RingBuffer(['abc'], size=4)")


if __name__ == "__main__":
    unittest.main()
"""


class Reader(Protocol):
    """What `bits_per_byte` needs of a model; `dslearn.LM` is one."""

    def encode(self, text: str) -> list[int]:
        """Token ids, the begin token first."""

    def forward(self, ids: list[list[int]]) -> Tensor:
        """Logits [1, T, V]."""


def bits_per_byte(model: Reader, text: str = TEXT) -> float:
    """Bits per byte that `model` needs to write `text` after its begin token."""
    ids = model.encode(text)
    logp = model.forward([ids]).log_softmax(-1)[0, :-1]
    nats = -sum(float(row[token]) for row, token in zip(logp, ids[1:], strict=True))
    return nats / math.log(2) / len(text.encode())

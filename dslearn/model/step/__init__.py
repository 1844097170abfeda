"""The decode step: one token of one sequence, in NumPy.

A step of one row is all call overhead: tiny took 15 ms for it, 2,200 calls into torch of which the
matrix products were 2.5 ms. A NumPy call on a view of the same memory costs 0.3 to 0.8 us where
torch takes 1 to 3, so `Model.forward` sends a call of one token here when nothing asks for torch:
no gradient, no compiler, fp32 arithmetic, no row-invariant mode. Files mirror those of
`dslearn/model`, where every mechanism is explained. The two agree to fp32
rounding where nothing is quantised: sums run in another order, and one that falls on the other side
of an fp8 or fp4 boundary moves later logits by up to about 1, as any other order does. A trace
works as ever, but no module is called: hooks and modules that were replaced take no part. Another
`Arith`, or `Numerics(row_invariant=True)`, keeps every call in torch.
"""

"""Number formats to the byte: pure codecs, no model and no kernel in here.

`e4m3`, `e2m1` and `ue8m0` are single numbers; `rows` and `tiles` are blocks of numbers that share
a scale; `records` are cache entries; `device` turns checkpoint bytes into bytes that trn2 reads.
`tables` holds the constants as plain integers and imports nothing, so kernels may use it.
"""

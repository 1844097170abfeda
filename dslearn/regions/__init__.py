"""From eager code to graphs that the device's compiler accepts: a lint that asks first, and a
workshop for when the compiler fails."""

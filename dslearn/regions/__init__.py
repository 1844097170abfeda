"""From eager code to graphs that the device's compiler accepts: here, the lint that asks first."""

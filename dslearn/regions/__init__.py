"""From eager code to graphs that the device's compiler accepts.

    from dslearn import regions

    class Layer(nn.Module):
        @regions.region(stage="attention")
        def attention_half(self, h, pool, rows): ...

    with torch.inference_mode(), regions.use("regions"):   # or DSLEARN_GRAPH_MODE=regions
        layer.attention_half(h, pool, rows)                # compiled now, run from then on
        regions.warm()                                     # no more compilation, or an error
    print(regions.report())                                # graphs, input bytes, calls

`regions.install()` does what the environment asks for, `regions.record()` times the host,
`regions.graphs()` counts what came from disk, `dslearn.regions.lint` says in advance what would be
refused, `dslearn.regions.workshop` is for when the compiler fails. Source: docs/regions.md.
"""

from dslearn.regions.backend import graphs
from dslearn.regions.runner import forget, install, record, region, report, use, warm
from dslearn.regions.timing import step

__all__ = ["forget", "graphs", "install", "record", "region", "report", "step", "use", "warm"]

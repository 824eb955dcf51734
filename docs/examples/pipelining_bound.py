"""Table 2 of the LAGS-SGD paper from what ``gradientflow bench train --json FILE`` has written: ``... FILE``.

S1 and S2 are what LAGS gains over dense communication and over SLGS, and S_max what pipelining can gain over SLGS.
"""

import json
import sys
from pathlib import Path

results = json.loads(Path(sys.argv[1]).read_text())["results"]
print(f"{'model':8}{'dense':>9}{'SLGS':>9}{'LAGS':>9}{'S1':>7}{'S2':>7}{'S_max':>7}   LAGS as")
for model in dict.fromkeys(result["model"] for result in results):
    found = [result for result in results if result["model"] == model]

    def named(name, found=found):
        """Return the results of a contestant, or of one of our strategies."""
        return [result for result in found if name in (result["contestant"], result["strategy"])]

    if not all(map(named, ("none", "dense", "slgs"))):
        sys.exit(f"{sys.argv[1]} has no rows of none, dense and slgs for {model}: give bench train these strategies")
    (none,), (dense, *_), (slgs, *_) = named("none"), named("dense"), named("slgs")
    forward, backward = none["forward_median_ms"], none["backward_median_ms"]
    sending = max(0.0, slgs["exposed_ms"] - slgs["bookkeeping_ms"])
    bound = (forward + backward + sending) / (forward + max(backward, sending))
    for lags in named("lags"):
        times = [each["step_median_ms"] for each in (dense, slgs, lags)]
        gains = times[0] / times[2], times[1] / times[2], bound
        figures = "".join(f"{each:9.1f}" for each in times) + "".join(f"{each:7.2f}" for each in gains)
        print(f"{model:8}{figures}   ratio {lags['settings']['ratio']}")

"""Checks the functions of the locust file given as argument. A program for locust's interpreter,
which has none of the project's packages; test_load.py runs it."""

import importlib.util
import math
import sys

import locust  # first: it changes what the file's other imports are made of

spec = importlib.util.spec_from_file_location("locustfile", sys.argv[1])
assert spec is not None and spec.loader is not None and locust.__version__
module = importlib.util.module_from_spec(spec)
sys.modules["locustfile"] = module
spec.loader.exec_module(module)

STREAM = {
    '{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}': (True, False, ""),
    '{"type":"content_block_delta","delta":{"thinking":"a"}}': (True, False, ""),
    '{"type":"message_delta","delta":{"stop_reason":"end_turn"}}': (False, False, ""),
    '{"type":"message_stop"}': (False, True, ""),
    '{"type":"error","error":{"type":"overloaded_error"}}': (False, False, "overloaded_error"),
    '{"choices":[{"delta":{"content":"a"}}]}': (True, False, ""),
    '{"choices":[{"delta":{"content":""}}]}': (False, False, ""),
    '{"choices":[]}': (False, False, ""),
    '{"error":{"type":"server_error"}}': (False, False, "server_error"),
    "[DONE]": (False, True, ""),
}
for data, meant in STREAM.items():
    assert module.read_data(data) == meant, data
assert module.read_stages("5:10s,20:2m") == [(5, 10.0), (20, 120.0)]
assert module.percentile([float(number) for number in range(100, 0, -1)], 0.99) == 99.0
assert module.percentile([], 0.99) == math.inf
made = [module.Message("p", 10 + n, 10 + n + (1 if n < 5 else 3), 99, "") for n in range(10)]
windows = [1.0, 1.0, 3.0, 3.0, 3.0]
mean = sum(windows) / 5
spread = math.sqrt(sum((value - mean) ** 2 for value in windows) / 4) / mean
assert math.isclose(module.deviation(made, 10, 10), spread)
assert module.deviation(made[:1], 10, 10) == math.inf, "one window has no deviation"
print("right")

"""OpenVINO GenAI's continuous batching pipeline, run by an interpreter that has it. Prints one
JSON object of figures.

usage: python openvino_engine.py FOLDER [--properties JSON]

The defaults are the best of some thirty settings tried on AVX-512 without AMX: see the page of the
comparison.

defines: main
"""

from __future__ import annotations

import argparse
import json
import random
import time

import numpy as np
import openvino
import openvino_genai as genai

import shapes
from window import rates

PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"}
CACHE_GIGABYTES = 2
ROWS_MAX = 512
SEQUENCES_MAX = 64
TOKEN_IDS = range(100, 49000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--properties", type=json.loads, default=PROPERTIES)
    options = parser.parse_args()
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIGABYTES
    scheduler.max_num_seqs = SEQUENCES_MAX
    scheduler.max_num_batched_tokens = ROWS_MAX
    scheduler.enable_prefix_caching = False
    scheduler.dynamic_split_fuse = True
    pipeline = genai.ContinuousBatchingPipeline(
        options.folder, scheduler_config=scheduler, device="CPU", properties=options.properties
    )

    def run(streams: int, prompt: int, generate: int) -> dict[str, float]:
        settings = genai.GenerationConfig()
        settings.max_new_tokens = settings.min_new_tokens = generate
        settings.ignore_eos, settings.do_sample = True, False
        prompts = [
            openvino.Tensor(np.array([random.choices(TOKEN_IDS, k=prompt)], dtype=np.int64))
            for _ in range(streams)
        ]
        begin = time.perf_counter()
        handles = [pipeline.add_request(i, ids, settings) for i, ids in enumerate(prompts)]
        times: list[list[float]] = [[] for _ in handles]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = time.perf_counter() - begin
            for handle, arrived in zip(handles, times, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        arrived += [now] * len(output.generated_ids)
        if any(len(arrived) != generate for arrived in times):
            raise SystemExit("an answer has not the forced length")
        return rates(times, prompt)

    print(json.dumps(shapes.engine_figures(run, False)))


if __name__ == "__main__":
    main()

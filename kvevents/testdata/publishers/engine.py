"""An engine without a model: publishes random events with the classes of a release of
vLLM or SGLang, which it takes from a wheel, and says what it holds.

  engine.py ENGINE WHEEL ENDPOINT REPLAY BUFFER SEED

Reads commands from standard input, a line each, and ends with it:

  publish N     publishes N batches
  held          prints {"batches": n, "held": {hash: copies}}
"""
import inspect
import json
import random
import sys
import time

from engine_events import build, load

MODULES = {
    "vllm": ("vllm.distributed.kv_events", ("vllm.config.kv_events",)),
    "sglang": ("sglang.srt.disaggregation.kv_events", ("sglang.srt.utils.network",)),
}


def main():
    engine, wheel, endpoint, replay, buffer, seed = sys.argv[1:]
    module, real = MODULES[engine]
    events, version = load(engine, module, real=real, wheel=wheel)
    options = dict(endpoint=endpoint, replay_endpoint=replay, buffer_steps=int(buffer), topic="kv-events")
    rank = {"vllm": "data_parallel_rank", "sglang": "attn_dp_rank"}[engine]
    if rank in inspect.signature(events.ZmqEventPublisher.__init__).parameters:
        options[rank] = 0
    publisher = events.ZmqEventPublisher(**options)
    print(json.dumps({"ready": version}), flush=True)

    r = random.Random(int(seed))
    low, high = (0, 2**64 - 1) if engine == "vllm" else (-(2**63), 2**63 - 1)
    held, names, batches = {}, [], 0

    def event():
        if r.random() < 0.0005:
            held.clear()
            names.clear()
            return build(events.AllBlocksCleared, {})
        if names and r.random() < 0.45:
            i = r.randrange(len(names))
            names[i], names[-1] = names[-1], names[i]
            name = names.pop()
            held[name] -= 1
            if not held[name]:
                del held[name]
            return build(events.BlockRemoved, {"block_hashes": [name], "medium": "GPU"})
        stored = [r.randint(low, high) for _ in range(r.randint(1, 4))]
        if names and r.random() < 0.1:
            stored[0] = r.choice(names)  # another copy
        for name in stored:
            held[name] = held.get(name, 0) + 1
            names.append(name)
        return build(events.BlockStored, {
            "block_hashes": stored, "parent_block_hash": None, "token_ids": [r.randrange(150000) for _ in range(16 * len(stored))],
            "block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None,
        })

    for line in sys.stdin:
        command = line.split()
        if command[0] == "publish":
            for _ in range(int(command[1])):
                publisher.publish(events.KVEventBatch(ts=time.time(), events=[event() for _ in range(r.randint(1, 5))]))
                batches += 1
        else:
            print(json.dumps({"batches": batches, "held": held}), flush=True)
    publisher.shutdown()


main()

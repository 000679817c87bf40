"""A publisher and a router of the real libzmq, for tests: reads commands from standard
input, a line each, and ends with it.

  peer.py bind [heartbeat ms]      prints the endpoints it is bound to
  peer.py connect ENDPOINT         connects the publisher

  send COUNT SIZE                  publishes messages [topic, number, payload] of topic kv
                                   and as many of topic other
The router answers ["", number] with the payloads from number to 9999 and an end.
"""
import sys
import threading

import zmq

context = zmq.Context()


def answer(router):
    while True:
        try:
            identity, empty, start = router.recv_multipart()
        except zmq.ZMQError:
            return
        for n in range(int.from_bytes(start, "big"), 10000):
            router.send_multipart([identity, b"", n.to_bytes(8, "big"), b"payload %d" % n])
        router.send_multipart([identity, b"", b"\xff" * 8, b""])


def main():
    publisher = context.socket(zmq.PUB)
    publisher.set_hwm(100000)
    if sys.argv[1] == "connect":
        publisher.connect(sys.argv[2])
        print("connecting", flush=True)
    else:
        if len(sys.argv) > 2:
            publisher.setsockopt(zmq.HEARTBEAT_IVL, int(sys.argv[2]))
            publisher.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10 * int(sys.argv[2]))
        publisher.bind("tcp://127.0.0.1:*")
        router = context.socket(zmq.ROUTER)
        router.set_hwm(100000)
        router.bind("tcp://127.0.0.1:*")
        threading.Thread(target=answer, args=[router], daemon=True).start()
        print(publisher.last_endpoint.decode(), router.last_endpoint.decode(), zmq.zmq_version(), flush=True)
    number = 0
    for line in sys.stdin:
        _, count, size = line.split()
        for _ in range(int(count)):
            publisher.send_multipart([b"other", b"12345678", b"x" * int(size)])
            publisher.send_multipart([b"kv", number.to_bytes(8, "big"), bytes([number % 256]) * int(size)])
            number += 1
        print("sent", number, flush=True)
    context.destroy(linger=0)


main()

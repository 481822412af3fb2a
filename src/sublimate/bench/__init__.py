"""Load tests: `sublimate bench URL`, `--compare URL`, `--engine`; `sublimate tax`, `limits`.

Reading order: http (one streamed request, timed), apis (bodies and events of the two API styles),
prompts, figures, load (one round against one server), served (rounds, comparison), native
(the in-process loop), report (tables and JSON rows). machine: what the machine gives at most.
The tax: streams (the client), processes, tax (what its figures share), tax_ceiling, tax_engine,
tax_ledger, tax_interference, tax_report, picture.
The wire: delay and delay_forwarder (a network with a round trip, without rights on the real one),
pcap, capture, wire_order, wire_client with wire_quic and wire_grpc, wire_compare,
wire_report. svg: marks of pictures.
"""

"""gRPC as a mapping in front of the HTTP API's handlers, without a transport in it.

framing.py (messages and timeouts on the wire), status.py (what an error becomes), call.py (one
call, and what a transport does for it), route.py (methods that are routes), listener.py (the
transport HTTP/2, by grpcio), in_body.py (HTTP/3, in the body of an exchange of edge/quic). Which
methods there are is a table that the routes bring (api/grpc).

Nothing here is imported before a server listens for gRPC or a request with its content type comes.
"""

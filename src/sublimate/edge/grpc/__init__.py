"""gRPC as a mapping in front of the HTTP API's handlers, and its transport HTTP/2.

framing.py (messages and timeouts on the wire), status.py (what an error becomes), call.py (one
call, and what a transport does for it), route.py (methods that are routes), in_body.py (a call in
the body of an exchange, on HTTP/2 and HTTP/3), http2.py (connections of HTTP/2) and hpack.py (their
heads). Which methods there are is a table that the routes bring (api/grpc).

Nothing here is imported before a server listens for gRPC or a request with its content type comes.
"""

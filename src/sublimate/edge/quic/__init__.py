"""HTTP/3 over QUIC: aioquic's protocol machines behind an adapter of our own.

transport.py and messages.py are what is ours of the library; listener.py has the socket and finds
the connection of a datagram; connection.py turns events into requests; stream.py is the wire of one
answer; tickets.py keeps what resumes a session. Imported only where a server listens with TLS.
"""

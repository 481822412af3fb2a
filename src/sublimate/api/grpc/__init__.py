"""What can be called by gRPC: the Messages API as a service of messages, health and reflection.

json_form.py (messages as the JSON that the routes read and write), services.py (the table of
methods), health.py and reflection.py (grpc.health.v1 and grpc.reflection, on every transport).
"""

"""The edge: HTTP to request tensor and back. In the order in which a request meets them:

http (connection and limits), access (keys, origins), routes (paths), messages (the story of one
request), guard, schema, normalise, prepare (body to token ids), record, engine (rings), stream
(answers). Beside them timing, models, probes, metrics, openapi, and above them app, server,
process.
"""

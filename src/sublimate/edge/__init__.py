"""The edge: HTTP to request tensor and back. In the order in which a request meets them:

http (connection and limits), access (keys, origins), routes (paths), then a surface (the package
api: body to conversation), sampling, record, engine (rings), stream (answers). Beside them observe
(timing, metrics, log), and above them app, server, process. No file here knows a surface but
__main__, which starts the process with the routes of all of them.
"""
